"""Scripts on two workers or hosts give the results of one device.

Workers are processes, as users start them; one device is this process.
`benchmarks/equality.py` compares longer runs, for docs/reports/equalities.md.
"""

import in_process
import pytest
from fine_tuning_runs import (
    assert_same,
    assert_same_answers,
    contents,
    names_in,
    results,
    weights,
)

TRAINING = {
    "train_batch_size": 12,
    "learning_rate": 1e-3,
    "max_grad_norm": 0.5,
    "jit_compile": "false",
}


def on_one_device(script, flags, folder):
    """Runs a script in this process."""
    values = {**flags, "output_dir": folder}
    with in_process.script(script) as launch:
        assert launch([f"--{k}={v}" for k, v in values.items()]) == 0
    return folder


@pytest.mark.slow
def test_two_workers_classify(layouts, benchmarks, tmp_path):
    """Training with micro-batches and best weights, evaluation, prediction."""
    data = tmp_path / "data"
    data.mkdir()
    flags = {
        **benchmarks("small_tasks").write_classification(data),
        **TRAINING,
        "gradient_accumulation_steps": 3,
        "num_train_epochs": 5,
        "do_train": True,
        "do_eval": True,
        "do_predict": True,
        "save_best": "accuracy",
        "eval_steps": 4,
    }
    alone = on_one_device("run_classifier", flags, tmp_path / "alone")
    folder = layouts.run(
        layouts.LAYOUTS["two_workers"],
        "run_classifier.py",
        flags,
        tmp_path / "together",
    )
    [newest] = (folder / "checkpoint").read_text().splitlines()[:1]
    name = newest.split('"')[1]
    assert_same(weights(folder / name), weights(alone / name), atol=1e-6)
    assert results(folder) == pytest.approx(results(alone), rel=1e-5)
    assert names_in(folder) == names_in(alone)
    assert len(list(folder.glob("*tfevents*"))) == 1
    assert_same_answers(folder, alone)


@pytest.mark.slow
def test_two_hosts_train_on_ragged_batches(layouts, benchmarks, tmp_path):
    """Each has its own folder; one of them gets no examples."""
    flags = {
        **TRAINING,
        "gradient_accumulation_steps": 2,
        "num_train_steps": 30,
    }
    alone = on_one_device("ragged_epochs", flags, tmp_path / "alone")
    try:
        folder = layouts.run(
            layouts.LAYOUTS["two_hosts"],
            "benchmarks/ragged_epochs.py",
            flags,
            tmp_path / "together",
        )
    except layouts.Unavailable as reason:
        pytest.skip(f"no hosts: {reason}")
    equality = benchmarks("equality")
    found = equality.difference(
        equality.read(folder, 30), equality.read(alone, 30)
    )
    assert found.weights < 1e-6
    assert found.moments < 1e-5
    assert not contents(tmp_path / "together" / "host1")
