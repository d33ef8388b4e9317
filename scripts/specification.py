"""Write the section "Measured" of SPECIFICATION.md from a record of ``bench/record``.

scripts/specification.py bench/results/DATE.json
"""

import argparse
import json
import re
from pathlib import Path

from cellfork.cli.benchmarks.report import as_section

SPECIFICATION = Path(__file__).resolve().parents[1] / "SPECIFICATION.md"
SECTION = re.compile(r"(<!-- bench:begin -->\n).*?(<!-- bench:end -->)", re.DOTALL)


def with_section(page: str, section: str) -> str:
    """Return ``page`` with ``section`` between its two markers; ``ValueError`` where they are not there once."""
    changed, count = SECTION.subn(lambda match: f"{match[1]}\n{section}\n{match[2]}", page)
    if count != 1:
        raise ValueError("the markers <!-- bench:begin --> and <!-- bench:end --> are not there once")
    return changed


def main() -> None:
    """Read a record, write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("record", type=Path, help="what bench/record wrote; its name is the day")
    record = parser.parse_args().record
    section = as_section(json.loads(record.read_text(encoding="utf-8")), record.stem)
    page = SPECIFICATION.read_text(encoding="utf-8")
    SPECIFICATION.write_text(with_section(page, section), encoding="utf-8")


if __name__ == "__main__":
    main()
