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
    read,
    results,
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


def classification(small_tasks, folder):
    return "run_classifier", {
        **small_tasks.write_classification(folder),
        "num_train_epochs": 5,
        "do_predict": True,
        "save_best": "accuracy",
    }


def pretraining(small_tasks, folder):
    steps = {"num_train_steps": 6, "num_warmup_steps": 2, "log_steps": 2}
    flags = small_tasks.write_pretraining(folder)
    return "run_pretraining", flags | steps


@pytest.mark.slow
@pytest.mark.parametrize("kind", [classification, pretraining])
def test_two_workers_equal_one_device(layouts, benchmarks, tmp_path, kind):
    """Training with micro-batches, evaluation and prediction."""
    data = tmp_path / "data"
    data.mkdir()
    script, flags = kind(benchmarks("small_tasks"), data)
    flags |= {
        **TRAINING,
        "gradient_accumulation_steps": 3,
        "do_train": True,
        "do_eval": True,
        "eval_steps": 4,
    }
    alone = on_one_device(script, flags, tmp_path / "alone")
    folder = layouts.run(
        layouts.LAYOUTS["two_workers"],
        f"{script}.py",
        flags,
        tmp_path / "together",
    )
    [newest] = (folder / "checkpoint").read_text().splitlines()[:1]
    name = newest.split('"')[1]
    for prefix in (name, "release/bert_model.ckpt"):
        ours, theirs = (read(f / prefix) for f in (folder, alone))
        assert_same(ours, theirs, atol=1e-6)
    assert results(folder) == pytest.approx(results(alone), rel=1e-5)
    assert names_in(folder) == names_in(alone)
    assert len(list(folder.glob("*tfevents*"))) == 1
    if kind is classification:
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
