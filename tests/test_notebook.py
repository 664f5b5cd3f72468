"""The notebook: stored as it ran, and what it tells is what came out."""

import re

import pytest
from checkout import ROOT

nbformat = pytest.importorskip("nbformat")

NOTEBOOK = ROOT / "examples" / "bert_from_scratch.ipynb"


@pytest.fixture(scope="module")
def stored():
    return nbformat.read(NOTEBOOK, as_version=4)


def code_of(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(cell):
    """What a cell printed, but for the log."""
    return "".join(
        output.text
        for output in cell.outputs
        if output.output_type == "stream" and output.name == "stdout"
    )


def test_it_is_stored_as_it_ran_from_top_to_bottom(stored):
    nbformat.validate(stored)
    cells = code_of(stored)
    counts = [cell.execution_count for cell in cells]
    assert counts == [*range(1, len(cells) + 1)]
    kinds = {o.output_type for cell in cells for o in cell.outputs}
    assert kinds == {"stream", "display_data"}


def test_what_is_told_of_it_is_what_is_stored(stored):
    """Pre-training is what knows the animals without a label."""
    text = "".join(map(printed, code_of(stored)))
    found = re.findall(r"labelled animals +(\d+)%, the others +(\d+)%", text)
    (_, guessed), (learned, known) = [[*map(int, row)] for row in found]
    assert learned == 100
    assert known > guessed + 40
    assert 20 < guessed < 50
