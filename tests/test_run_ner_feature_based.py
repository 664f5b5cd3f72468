"""run_ner.py --mode=feature_based, in this process."""

import shutil

import conll_files
import fine_tuning_runs
import in_process
import numpy as np
import pytest
from fine_tuning_runs import ANSWERS, CONFIG, contents, read, results, weights
from test_run_ner import assert_same_predictions

from bert_tf.interop import conversion
from bert_tf.pretrained import open_pretrained

MODE = {
    "mode": "feature_based",
    "feature_layers": "second_to_last",
    "lstm_size": 5,
}
NO_MODE = dict.fromkeys(MODE)


@pytest.fixture(scope="module")
def launch():
    with in_process.script("run_ner", ["output_dir"]) as launch:
        yield launch


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """The release of a classifier, whose encoder is taken."""
    folder = tmp_path_factory.mktemp("start") / "release"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CONFIG, "num_hidden_layers", 2)
        # Smaller random models hardly tell words apart.
        patch.setitem(CONFIG, "hidden_size", 32)
        return fine_tuning_runs.write_release(folder, ("yes", "no"))


@pytest.fixture(scope="module")
def inputs(start, tmp_path_factory):
    """The flags that name the model and the data, and the mode."""
    data = conll_files.write(tmp_path_factory.mktemp("inputs") / "data")
    files = {"init_checkpoint": start, "data_dir": data}
    return {**MODE, **files}


@pytest.fixture(scope="module")
def done(launch, inputs, tmp_path_factory):
    """The folder of a run that does everything."""
    folder = tmp_path_factory.mktemp("done")
    return fine_tuning_runs.do_everything(launch, inputs, folder)


@pytest.fixture
def run(launch, inputs):
    return fine_tuning_runs.runner(launch, inputs)


def test_the_encoder_does_not_change(done, start):
    released = read(done / "release" / "bert_model.ckpt")
    before = weights(start / "bert_model.ckpt")
    encoder = {name for name in before if name.startswith("bert/")}
    assert len(encoder) == 5 + 2 * 16 + 2
    new = released.keys() - encoder
    assert {name.split("/")[0] for name in new} == {"features_second_to_last"}
    for name in encoder:
        np.testing.assert_array_equal(released[name], before[name], name)


def test_the_optimizer_has_only_the_new_weights(done):
    [checkpoint] = done.glob("model.ckpt-*.index")
    tensors = read(checkpoint.with_suffix(""))
    moments = {
        name.removesuffix("/adam_m")
        for name in tensors
        if name.endswith("/adam_m")
    }
    features = {
        n for n in weights(checkpoint.with_suffix("")) if "bert" not in n
    }
    assert moments == features
    assert len(moments) == 2 * 2 * 3 + 2


@pytest.mark.slow
def test_release_and_folder_give_the_same_tags(done, run, tmp_path):
    """The release in another folder, padded; the folder without checkpoints."""
    run(
        tmp_path / "new",
        **ANSWERS,
        init_checkpoint=done / "release",
        padding="max_length",
    )
    assert_same_predictions(tmp_path / "new", done)
    folder = tmp_path / "copy"
    shutil.copytree(done, folder)
    for path in folder.glob("model.ckpt-*"):
        path.unlink()
    (folder / "checkpoint").unlink()
    (folder / "test_predictions.txt").unlink()
    run(folder, do_train=None, do_predict=True, init_checkpoint=None)
    assert_same_predictions(folder, done)


def test_the_release_converts_as_an_encoder(done):
    released = open_pretrained(str(done / "release"))
    assert released.labels == conll_files.LABELS
    assert released.head == "encoder"
    planned = conversion.plan(released, "huggingface", drop=["features_*"])
    assert all(n.startswith("bert/") for n in planned.target.weights.shapes)


@pytest.mark.slow
def test_words_are_learned(run, tmp_path):
    """From sentences enough to see every word some ten times."""
    train = tmp_path / "train.txt"
    train.write_text(conll_files.text_of("more", 60), encoding="utf-8")
    folder = tmp_path / "out"
    run(
        folder,
        do_eval=True,
        num_train_epochs=12,
        lstm_size=31,
        train_file=train,
    )
    assert results(folder)["eval_f1"] > 0.9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"feature_layers": "sum_last_four"},
            "a model with 2 layers; got 'sum_last_four'",
        ),
        (
            {"mode": None},
            "--feature_layers has no effect with --mode=fine_tuning",
        ),
        (
            {"num_frozen_layers": 1},
            "--num_frozen_layers has no effect with --mode=feature_based",
        ),
        (
            {"gradient_checkpointing": True},
            "--gradient_checkpointing has no effect with --mode",
        ),
    ],
)
def test_errors_are_one_line(run, tmp_path, capsys, changes, message):
    run(tmp_path / "out", status=1, **changes)
    assert message in in_process.the_error(capsys, "run_ner")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (NO_MODE, 'this run has mode "fine_tuning"'),
        (
            {"feature_layers": "last"},
            'this run has feature_layers "last"',
        ),
        ({"lstm_size": 7}, "this run has lstm_size 7"),
    ],
)
def test_a_folder_of_another_model_is_not_overwritten(
    done, run, capsys, changes, message
):
    before = contents(done)
    run(done, status=1, **changes)
    assert message in in_process.the_error(capsys, "run_ner")
    assert contents(done) == before


@pytest.mark.parametrize(
    ("changes", "lacking"),
    [
        (NO_MODE, "output_weights"),
        ({"feature_layers": "last"}, "features_last/"),
    ],
)
def test_the_release_is_not_another_model(
    done, run, tmp_path, capsys, changes, lacking
):
    """Not even one whose weights have the same shapes."""
    answers = {**ANSWERS, "init_checkpoint": done / "release"}
    run(tmp_path, status=1, **answers, **changes)
    line = in_process.the_error(capsys, "run_ner")
    assert "is not a fine-tuned model" in line
    assert f"it lacks {lacking}" in line
