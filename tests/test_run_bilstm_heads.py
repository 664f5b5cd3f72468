"""Fine-tuning scripts with a BiLSTM head, which keep their best evaluation."""

import functools
import json
import shutil

import conll_files
import fine_tuning_runs
import pytest
import sentence_files
import squad_files
from fine_tuning_runs import assert_same, error_of, names_in, read, results

from bert_tf.checkpoints import conversion
from bert_tf.checkpoints.pretrained import open_pretrained
from bert_tf.errors import InputError

pytestmark = pytest.mark.usefixtures("eagerly")

KERNEL = "bilstm/forward_lstm/lstm_cell/kernel"
# Script -> the metric that selects the weights.
SCRIPTS = {"run_classifier": "loss", "run_squad": "f1", "run_ner": "f1"}
WITHOUT_FILES = {"bert_config_file": None, "vocab_file": None}


def flags_of(script, folder):
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
def run(script, tmp_path_factory):
    """Runs a script with the usual flags and some changes."""
    flags = {
        **flags_of(script, tmp_path_factory.mktemp("inputs")),
        **{"bilstm_head": True, "save_checkpoints_steps": 3, "do_eval": True},
        **{"save_best": SCRIPTS[script], "eval_steps": 2},
    }
    return functools.partial(fine_tuning_runs.run, script, **flags)


@pytest.fixture(scope="module")
def done(run, tmp_path_factory):
    """The folder of a run with a BiLSTM."""
    folder = tmp_path_factory.mktemp("done")
    run(folder)
    return folder


def last_step(folder):
    return max(int(p.stem[11:]) for p in folder.glob("model.ckpt-*.index"))


def test_the_bilstm_is_trained_and_released(done, script, run, capsys):
    released = open_pretrained(done / "release")
    width = fine_tuning_runs.CONFIG["hidden_size"]
    assert released.bilstm_head
    shapes = released.weights.shapes
    assert shapes[KERNEL] == [width, 4 * width]
    [output] = [n for n in shapes if n.endswith("output_weights")]
    assert shapes[output][1] == 2 * width
    last = read(done / f"model.ckpt-{last_step(done)}")
    assert last[f"{KERNEL}/adam_v"].any()
    error = error_of(capsys, run, done, bilstm_head=None)
    assert "holds a run with bilstm_head true" in error
    assert "this run has bilstm_head false" in error


def test_the_best_evaluation_is_kept(done, script):
    lines = (done / "evaluations.jsonl").read_text().splitlines()
    history = [json.loads(line) for line in lines]
    steps = [*range(2, last_step(done), 2), last_step(done)]
    assert [evaluation["step"] for evaluation in history] == steps
    if script == "run_classifier":
        best = min(history, key=lambda e: e["loss"])
    else:
        best = max(history, key=lambda e: e["eval_f1"])
    metrics = results(done)
    assert metrics.pop("global_step") == best["step"]
    assert metrics == pytest.approx({name: best[name] for name in metrics})


@pytest.mark.slow
@pytest.mark.graph
def test_a_resumed_run_ends_with_the_same_weights(done, run, tmp_path):
    """Bit for bit."""
    folder, last = tmp_path / "out", f"model.ckpt-{last_step(done)}"
    shutil.copytree(done, folder)
    (folder / f"{last}.index").unlink()
    shutil.rmtree(folder / "release")
    run(folder)
    for name in (last, "release/bert_model.ckpt"):
        assert_same(read(folder / name), read(done / name))


@pytest.mark.slow
def test_later_runs_need_no_flag(done, script, run, tmp_path):
    """Neither in the same folder nor from the release."""
    is_exported = script == "run_classifier"
    before = results(done)
    folder = tmp_path / "same"
    shutil.copytree(done, folder)
    (folder / "eval_results.txt").unlink()
    flags = {"do_train": None, "bilstm_head": None}
    run(folder, **flags)
    assert results(folder) == before
    flags |= {**WITHOUT_FILES, "init_checkpoint": done / "release"}
    run(tmp_path / "other", **flags, do_export=is_exported)
    found = results(tmp_path / "other")
    del before["global_step"], found["global_step"]
    assert found == pytest.approx(before, abs=1e-6)
    names = names_in(tmp_path / "other")
    exported = [name for name in names if name.endswith("/saved_model.pb")]
    assert len(exported) == is_exported
    # Its encoder starts a model without a BiLSTM.
    flags |= {"do_train": True, "num_train_epochs": 1}
    run(tmp_path / "plain", **flags)
    assert not open_pretrained(tmp_path / "plain" / "release").bilstm_head


def test_other_formats_do_not_support_it(done):
    source = open_pretrained(done / "release")
    with pytest.raises(InputError, match="supports a BiLSTM between"):
        conversion.plan(source, "huggingface", source.head)
    planned = conversion.plan(source, "keras", "encoder", drop=["bilstm/*"])
    assert "(drop)" in str(planned)
    assert not planned.target.bilstm_head
