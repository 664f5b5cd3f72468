"""The notebook runs, and its stored outputs are what its code prints."""

import pytest
from checkout import ROOT

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

NOTEBOOK = ROOT / "examples" / "bert_from_scratch.ipynb"
# Makes the notebook shorter, with other numbers.
SHORTER = {
    "--num_train_steps=800": "--num_train_steps=2",
    "--num_warmup_steps=80": "--num_warmup_steps=1",
    "--eval_steps=100": "--eval_steps=2",
    "epochs=40": "epochs=1",
}


def code_of(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(notebook):
    """Returns what each cell of code printed, without the log."""
    return [
        "".join(o.text for o in cell.outputs if o.get("name") == "stdout")
        for cell in code_of(notebook)
    ]


@pytest.mark.slow
def test_the_notebook_runs():
    """A shorter run; until training its output is the stored one."""
    stored = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(stored)
    counts = [cell.execution_count for cell in code_of(stored)]
    assert counts == [*range(1, len(counts) + 1)]
    notebook = nbformat.from_dict(stored)
    source = "".join(cell.source for cell in code_of(notebook))
    for whole, short in SHORTER.items():
        assert whole in source
        for cell in code_of(notebook):
            cell.source = cell.source.replace(whole, short)
    before = printed(stored)
    nbclient.NotebookClient(
        notebook,
        timeout=900,
        kernel_name="python3",
        resources={"metadata": {"path": str(NOTEBOOK.parent)}},
    ).execute()
    after = printed(notebook)
    training = next(
        n for n, cell in enumerate(code_of(stored)) if "run_pre" in cell.source
    )
    assert after[:training] == before[:training]
    assert "step 2 evaluated" in after[training]
    assert "labelled animals" in after[-2]
    assert after[-1].count("%") == 3
