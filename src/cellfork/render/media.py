"""What is known of an image without decoding it: its type, its size in pixels and in bytes."""

import base64
import binascii
import re
from dataclasses import dataclass

_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


@dataclass(frozen=True, slots=True)
class Image:
    """An image (or a PDF) of a result: MIME type, base64 text, pixels where they are known."""

    mime: str
    data_base64: str
    size: tuple[int, int] | None = None

    @property
    def extension(self) -> str:
        """The usual end of a file's name for this type."""
        return {"image/png": "png", "image/jpeg": "jpg", "image/svg+xml": "svg"}.get(self.mime, "pdf")

    @property
    def byte_count(self) -> int:
        """Bytes of the decoded content."""
        length = len(self.data_base64)
        return max(0, length * 3 // 4 - self.data_base64[-2:].count("="))

    def describe(self) -> str:
        """Return for instance ``image/png 640x480, 12.3 KiB``."""
        pixels = f" {self.size[0]}x{self.size[1]}" if self.size else ""
        return f"{self.mime}{pixels}, {human_size(self.byte_count)}"


def image_of(mime: str, content: str) -> Image:
    """Return the image in ``content``: base64 text, or markup for SVG."""
    if mime == "image/svg+xml":
        return Image(
            mime, base64.b64encode(content.encode("utf-8", "replace")).decode("ascii"), _svg_size(content)
        )
    compact = "".join(content.split()) if any(c.isspace() for c in content[:100]) else content.strip()
    return Image(mime, compact, _pixels(mime, compact))


def is_base64(text: str) -> bool:
    """Tell whether ``text`` is base64 and nothing else: only then may it go into a data URI."""
    return re.fullmatch(r"[A-Za-z0-9+/]*={0,2}", text) is not None


def human_size(count: int) -> str:
    """Return bytes as a person reads them: ``812 B``, ``12.3 KiB``, ``4.0 MiB``."""
    if count < 1024:
        return f"{count} B"
    return f"{count / 1024:.1f} KiB" if count < 1024**2 else f"{count / 1024**2:.1f} MiB"


def _pixels(mime: str, data_base64: str) -> tuple[int, int] | None:
    """Width and height from the header of a PNG or a JPEG; ``None`` where it cannot be read."""
    prefix = data_base64[: 4 * 16_384]
    try:
        head = base64.b64decode(prefix[: len(prefix) // 4 * 4])
    except (binascii.Error, ValueError):
        return None
    if mime == "image/png":
        is_png = head[:8] == b"\x89PNG\r\n\x1a\n" and len(head) >= 24
        return (int.from_bytes(head[16:20]), int.from_bytes(head[20:24])) if is_png else None
    return _jpeg_pixels(head) if mime == "image/jpeg" else None


def _jpeg_pixels(head: bytes) -> tuple[int, int] | None:
    position = 2
    while head[:2] == b"\xff\xd8" and position + 9 <= len(head) and head[position] == 0xFF:
        if head[position + 1] in _JPEG_FRAMES:
            return int.from_bytes(head[position + 7 : position + 9]), int.from_bytes(
                head[position + 5 : position + 7]
            )
        position += 2 + max(2, int.from_bytes(head[position + 2 : position + 4]))
    return None


def _svg_size(markup: str) -> tuple[int, int] | None:
    opening = re.search(r"<svg\b[^>]{0,4000}>", markup[:20_000])
    if opening is None:
        return None
    found = dict(re.findall(r"""\b(width|height)\s*=\s*["']\s*(\d{1,6})""", opening[0]))
    return (int(found["width"]), int(found["height"])) if len(found) == 2 else None
