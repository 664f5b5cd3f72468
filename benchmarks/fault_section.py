"""Writes the section about faults in docs/reports/faults.md from rows of tests.

    python -m pytest -m fault --fault_rows=build/faults.json
    python benchmarks/fault_section.py build/faults.json docs/reports/faults.md

`make faults` does both; without a page the section is printed.
"""

import argparse
import json
import pathlib

from comparison import paragraphs, publish, table

TITLES = ["fault", "result", "final difference", "test"]
OPENING = [
    "`make faults` writes this. After each fault the same command was run",
    "again. Persistent causes were removed first.",
    "The difference is the largest one between the final weights and moments",
    "of Adam and those of an undisturbed run.",
]


def main(rows: str, page: str | None = None) -> None:
    """Writes the rows of tests/fault_rows.py to a page."""
    lines = [TITLES]
    for row in json.loads(pathlib.Path(rows).read_text(encoding="utf-8")):
        difference, test = f"{row['difference']:g}", f"`{row['node']}`"
        cells = [row["broken"], row["happened"], difference, test]
        lines.append([cell.replace("|", "\\|") for cell in cells])
    publish(paragraphs(OPENING, table(lines)), page, "faults")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("rows", help="JSON file of the rows.")
    parser.add_argument("page", nargs="?", help="Page to write the section to.")
    main(**vars(parser.parse_args()))
