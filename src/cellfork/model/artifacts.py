"""Files that an execution made or changed.

The standard library only; the types of files are those of its table, never of the machine's.
"""

import mimetypes
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

UNKNOWN_TYPE = "application/octet-stream"

_TYPES = {
    ".feather": "application/vnd.apache.arrow.file",
    ".arrow": "application/vnd.apache.arrow.file",
    ".geojson": "application/geo+json",
    ".go": "text/x-go",
    ".ipynb": "application/x-ipynb+json",
    ".java": "text/x-java",
    ".jsonl": "application/jsonl",
    ".md": "text/markdown",
    ".ndjson": "application/x-ndjson",
    ".npy": "application/x-npy",
    ".npz": "application/x-npz",
    ".parquet": "application/vnd.apache.parquet",
    ".pkl": "application/x-pickle",
    ".r": "text/x-r",
    ".sql": "application/sql",
    ".sqlite": "application/vnd.sqlite3",
    ".toml": "application/toml",
    ".ts": "text/x-typescript",
    ".webp": "image/webp",
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    ".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    ".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}
_TYPE_OF_ENCODING = {
    "gzip": "application/gzip",
    "bzip2": "application/x-bzip2",
    "xz": "application/x-xz",
    "compress": "application/x-compress",
}


@dataclass(frozen=True, slots=True)
class Artifact:
    """A regular file that an execution made or changed, as the sandbox tells it.

    ``path`` is what ``sandbox.files.read`` takes, ``size`` is in bytes, ``mime`` goes by the name alone, ``sha256`` is
    that of the content in hex (``None``: the file is too large to be read for that, unreadable, or still being written).
    ``lossy``: the name is not UTF-8 and cannot be given back as it is shown.
    """

    path: str
    size: int
    mime: str
    sha256: str | None = None
    lossy: bool = False

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    def to_dict(self) -> dict[str, Any]:
        """Return ``{"path", "size", "mime", "sha256", "lossy"}``."""
        return asdict(self)


def mime_of(name: str) -> str:
    """Return the MIME type that a file's name stands for; ``application/octet-stream`` where it says nothing."""
    kind, encoding = _table().guess_type("file:" + name.replace(":", "_"), strict=True)
    if encoding is not None:
        return _TYPE_OF_ENCODING.get(encoding, UNKNOWN_TYPE)
    return kind or UNKNOWN_TYPE


@cache
def _table() -> mimetypes.MimeTypes:
    table = mimetypes.MimeTypes()
    for extension, kind in _TYPES.items():
        table.add_type(kind, extension)
    return table
