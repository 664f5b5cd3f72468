"""--bilstm_head of the fine-tuning scripts, from the command line to files."""

import shutil

import conll_files
import fine_tuning_runs
import in_process
import pytest
import sentence_files
import squad_files
from fine_tuning_runs import (
    assert_same,
    names_in,
    read,
    results,
    weights,
)

from bert_tf.errors import InputError
from bert_tf.interop import conversion
from bert_tf.jobs import fine_tuning
from bert_tf.pretrained import open_pretrained

KERNEL = "bilstm/forward_lstm/lstm_cell/kernel"
SCRIPTS = {
    "run_classifier": ["task_name", "output_dir"],
    "run_squad": ["output_dir"],
    "run_ner": ["output_dir"],
}


def given_to(script, folder):
    """Returns the flags of the model and the data of a script."""
    if script == "run_squad":
        questions = squad_files.questions(5, seed=1)
        path = squad_files.write(folder / "train.json", questions)
        model = fine_tuning_runs.write_model(folder, words=squad_files.VOCAB)
        files = {"train_file": path, "predict_file": path}
        return {**model, **files, "max_query_length": 5}
    model = fine_tuning_runs.write_model(folder)
    if script == "run_ner":
        return {**model, "data_dir": conll_files.write(folder / "data")}
    data = sentence_files.write(folder / "data", "sst-2")
    return {**model, "data_dir": data, "task_name": "sst-2"}


@pytest.fixture(
    scope="module",
    params=[
        "run_classifier",
        pytest.param("run_squad", marks=pytest.mark.slow),
        pytest.param("run_ner", marks=pytest.mark.slow),
    ],
)
def script(request):
    return request.param


@pytest.fixture(scope="module")
def launch(script):
    with in_process.script(script, SCRIPTS[script]) as launch:
        yield launch


@pytest.fixture(scope="module")
def inputs(script, tmp_path_factory):
    return given_to(script, tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def done(launch, inputs, tmp_path_factory):
    """Returns the folder of a run with a BiLSTM."""
    folder = tmp_path_factory.mktemp("done")
    words = {**inputs, "output_dir": folder, "do_eval": True}
    words |= {"bilstm_head": True, "save_checkpoints_steps": 3}
    assert launch(fine_tuning_runs.arguments(**words)) == 0
    return folder


@pytest.fixture
def run(launch, inputs):
    return fine_tuning_runs.runner(launch, inputs)


def test_the_release_has_the_bilstm(done):
    released = open_pretrained(done / "release")
    width = fine_tuning_runs.CONFIG["hidden_size"]
    assert released.bilstm_head
    assert released.weights.shapes[KERNEL] == [width, 4 * width]
    [output] = [
        shape
        for name, shape in released.weights.shapes.items()
        if name.endswith("output_weights")
    ]
    assert output[1] == 2 * width


def test_the_bilstm_is_trained_and_resumed(done, run, tmp_path):
    """A resumed run ends with the same weights, bit for bit."""
    step = int(results(done)["global_step"])
    moments = read(done / f"model.ckpt-{step}")[f"{KERNEL}/adam_v"]
    assert moments.any()
    folder = tmp_path / "out"
    shutil.copytree(done, folder)
    (folder / f"model.ckpt-{step}.index").unlink()
    shutil.rmtree(folder / "release")
    run(folder, bilstm_head=True, save_checkpoints_steps=3)
    found, expected = (
        weights(f / f"model.ckpt-{step}") for f in (folder, done)
    )
    assert_same(found, expected)


@pytest.mark.slow
def test_later_runs_need_no_flag(done, run, tmp_path):
    """Neither in the same folder nor from the release."""
    before = results(done)
    folder = tmp_path / "same"
    shutil.copytree(done, folder)
    (folder / "eval_results.txt").unlink()
    answers = {"do_train": None, "do_eval": True}
    run(folder, **answers)
    assert results(folder) == before
    run(
        tmp_path / "other",
        **answers,
        bert_config_file=None,
        vocab_file=None,
        init_checkpoint=done / "release",
        do_export=True,
    )
    found = results(tmp_path / "other")
    del before["global_step"], found["global_step"]
    assert found == pytest.approx(before, abs=1e-6)
    names = names_in(tmp_path / "other")
    assert any(name.endswith("/saved_model.pb") for name in names)


def test_another_head_is_refused(done, run, script, capsys):
    run(done, status=1)
    line = in_process.the_error(capsys, script)
    assert "holds a run with bilstm_head true" in line
    assert "this run has bilstm_head false" in line


def test_other_formats_cannot_hold_it(done, tmp_path):
    source = open_pretrained(done / "release")
    with pytest.raises(InputError, match="supports a BiLSTM between"):
        conversion.plan(source, "huggingface", source.head)
    planned = conversion.plan(source, "keras", "encoder", drop=["bilstm/*"])
    assert "(--drop)" in str(planned)
    assert not planned.target.bilstm_head


@pytest.mark.slow
def test_its_encoder_starts_a_model_without_it(done, run, tmp_path):
    """The head is dropped, like heads of other tasks."""
    run(
        tmp_path,
        bert_config_file=None,
        vocab_file=None,
        init_checkpoint=done / "release",
        num_train_epochs=1,
    )
    released = open_pretrained(tmp_path / fine_tuning.RELEASE)
    assert not released.bilstm_head
