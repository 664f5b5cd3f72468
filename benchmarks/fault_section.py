"""The section about faults in docs/scale.md, from what its tests have seen.

    python -m pytest -m fault --fault_rows=build/faults.json
    python benchmarks/fault_section.py build/faults.json docs/scale.md

`make faults` does both.
"""

import json
import pathlib
import sys
from collections.abc import Mapping, Sequence

from pages import publish, table

TITLES = (
    *("what was broken", "what happened"),
    *("difference in the end", "test"),
)


def section(rows: Sequence[Mapping[str, str | float]]) -> str:
    """Everything that was seen, in Markdown.

    Args:
      rows: What tests/fault_rows.py writes.
    """
    cells = (
        [
            *(row["broken"], row["happened"], f"{row['difference']:g}"),
            f"`{row['node']}`",
        ]
        for row in rows
    )
    lines = [
        "`make faults` writes this. After each fault the same command was",
        "given again, its cause being mended where it would come back. The",
        "difference is the largest one between the weights and moments of Adam",
        "that it ended with and those of a run that nothing had disturbed.",
        "",
        *table([TITLES, *(list(map(_cell, row)) for row in cells)]),
    ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(rows: str, page: str | None = None) -> None:
    """Prints the section of a file of rows, or writes it into a page."""
    text = section(json.loads(pathlib.Path(rows).read_text("utf-8")))
    publish(text, page, "faults")


if __name__ == "__main__":
    main(*sys.argv[1:])
