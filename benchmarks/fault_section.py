"""Writes the section about faults in docs/scale.md from rows of tests.

    python -m pytest -m fault --fault_rows=build/faults.json
    python benchmarks/fault_section.py build/faults.json docs/scale.md

`make faults` does both; without a page the section is printed.
"""

import json
import pathlib
import sys
from collections.abc import Mapping, Sequence

from comparison import paragraphs, publish, table

TITLES = ["what was broken", "what happened", "difference in the end", "test"]


def section(rows: Sequence[Mapping[str, str | float]]) -> str:
    """Returns the section for the rows that tests/fault_rows.py wrote."""
    cells = (
        [
            *(row["broken"], row["happened"], f"{row['difference']:g}"),
            f"`{row['node']}`",
        ]
        for row in rows
    )
    return paragraphs(
        [
            "`make faults` writes this. After each fault the same command was",
            "rerun, once its cause was fixed where it would come back. The",
            "difference is the largest one between the final weights and",
            "moments of Adam and those of an undisturbed run.",
        ],
        table([TITLES, *([c.replace("|", "\\|") for c in r] for r in cells)]),
    )


def main(rows: str, page: str | None = None) -> None:
    text = pathlib.Path(rows).read_text(encoding="utf-8")
    publish(section(json.loads(text)), page, "faults")


if __name__ == "__main__":
    main(*sys.argv[1:])
