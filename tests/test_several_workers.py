"""Scripts on two workers or hosts give the results of one device.

Workers are processes, as users start them; one device is this process.
`benchmarks/equality.py` compares longer trainings, for docs/scale.md.
"""

import fine_tuning_runs
import in_process
import pytest
import squad_files

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


def last_weights(folder):
    [newest] = (folder / "checkpoint").read_text().splitlines()[:1]
    return fine_tuning_runs.weights(folder / newest.split('"')[1])


def assert_same_run(folder, alone):
    """Compares weights, metrics and the names of files."""
    fine_tuning_runs.assert_same(
        last_weights(folder), last_weights(alone), atol=1e-6
    )
    found, expected = map(fine_tuning_runs.results, (folder, alone))
    assert found == pytest.approx(expected, rel=1e-5)
    names = fine_tuning_runs.names_in(folder)
    assert names == fine_tuning_runs.names_in(alone)
    assert len(list(folder.glob("*tfevents*"))) == 1


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
    assert_same_run(folder, alone)
    fine_tuning_runs.assert_same_answers(folder, alone)


@pytest.mark.slow
def test_two_workers_answer_questions(layouts, tmp_path):
    words = fine_tuning_runs.WITHOUT_DROPOUT
    model = fine_tuning_runs.write_model(
        tmp_path / "model", words=squad_files.VOCAB, **words
    )
    asked = {
        f"{split}_file": squad_files.write(
            tmp_path / f"{split}.json", squad_files.questions(count, seed)
        )
        for split, count, seed in (("train", 13, 1), ("predict", 7, 2))
    }
    flags = {
        **model,
        **asked,
        **TRAINING,
        # The gradients of the keys' biases are rounding errors, from which Adam
        # makes steps; a small learning rate keeps them short.
        "learning_rate": 1e-4,
        "max_seq_length": 29,
        "doc_stride": 7,
        "max_query_length": 5,
        "num_train_epochs": 4,
        "do_train": True,
        "do_predict": True,
        "do_eval": True,
    }
    alone = on_one_device("run_squad", flags, tmp_path / "alone")
    folder = layouts.run(
        layouts.LAYOUTS["two_workers"],
        "run_squad.py",
        flags,
        tmp_path / "together",
    )
    assert_same_run(folder, alone)
    found, expected = (
        (path / "predictions.json").read_bytes() for path in (folder, alone)
    )
    assert found == expected


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
    assert not fine_tuning_runs.contents(tmp_path / "together" / "host1")
