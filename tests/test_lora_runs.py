"""--lora_rank trains only the adapters and the head; release/ is plain."""

import functools
import json
import shutil

import fine_tuning_runs
import numpy as np
import pytest
import safetensors.numpy
import sentence_files
from fine_tuning_runs import (
    ANSWERS,
    assert_same,
    assert_same_answers,
    read,
    spans,
    tags,
    weights,
)

from bert_tf.modeling.heads import BertClassifier
from bert_tf.modeling.variables import checkpoint_variables

pytestmark = pytest.mark.usefixtures("eager_fixtures", "eagerly")

SLOTS = ("/adam_m", "/adam_v")


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    folder = tmp_path_factory.mktemp("start") / "model"
    return fine_tuning_runs.write_release(folder, ("0", "1"))


@pytest.fixture(scope="module")
def run(start, tmp_path_factory):
    return functools.partial(
        fine_tuning_runs.run,
        "run_classifier",
        data_dir=sentence_files.write(tmp_path_factory.mktemp("data"), "sst-2"),
        init_checkpoint=start,
        task_name="SST-2",
        lora_rank=3,
        do_eval=True,
        do_predict=True,
        save_checkpoints_steps=2,
        num_train_epochs=1,
        # Wrong merging or missing adapters would hardly show otherwise.
        learning_rate=0.1,
    )


@pytest.fixture(scope="module")
def done(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("done")
    run(folder)
    return folder


@pytest.fixture
def copy(done, tmp_path):
    return shutil.copytree(done, tmp_path / "copy")


def test_the_release_is_a_plain_model(start, done):
    before, after = (
        weights(f / "bert_model.ckpt") for f in (start, done / "release")
    )
    assert before.keys() == after.keys()
    changed = {n for n in after if not np.array_equal(before[n], after[n])}
    kernels = {
        f"bert/encoder/layer_0/attention/self/{name}/kernel"
        for name in ("query", "value")
    }
    assert changed == kernels | {"output_weights", "output_bias"}
    change = after[min(kernels)] - before[min(kernels)]
    assert np.linalg.matrix_rank(change, tol=1e-6) == 3
    adapters = safetensors.numpy.load_file(
        done / "release" / "lora" / "adapter_model.safetensors"
    )
    layer = "base_model.model.bert.encoder.layer.0.attention.self.query"
    a, b = (adapters[f"{layer}.lora_{half}.weight"] for half in "AB")
    np.testing.assert_allclose(change.T, b @ a, rtol=1e-4, atol=1e-6)


def test_checkpoints_have_the_moments_of_trained_weights_only(done):
    names = read(done / "model.ckpt-3")
    trained = {n.rpartition("/")[0] for n in names if n.endswith(SLOTS)}
    assert len(trained) == 4 + 2
    assert sum("/lora_kernel_" in name for name in trained) == 4


def test_the_adapters_load_on_the_initial_checkpoint(start, done):
    model = BertClassifier.from_pretrained(start)
    model.load_lora_weights(done / "release" / "lora")
    model.merge_lora()
    expected = weights(done / "release" / "bert_model.ckpt")
    found = checkpoint_variables(model)
    assert_same({n: v.numpy() for n, v in found.items()}, expected, atol=1e-6)


@pytest.mark.parametrize(
    "source", ["folder", pytest.param("checkpoint", marks=pytest.mark.slow)]
)
def test_predictions_without_the_flag(source, done, copy, run, tmp_path):
    """The adapters of checkpoints of the training are merged."""
    flags = {**ANSWERS, "lora_rank": None, "init_checkpoint": None}
    if source == "folder":
        (copy / "eval_results.txt").unlink()
    else:
        copy, release = tmp_path / "new", done / "release"
        flags["vocab_file"] = release / "vocab.txt"
        flags["bert_config_file"] = release / "bert_config.json"
        flags["init_checkpoint"] = done / "model.ckpt-3"
    run(copy, **flags)
    assert_same_answers(copy, done)


def test_a_run_resumes_bit_for_bit(done, copy, run):
    (copy / "model.ckpt-3.index").unlink()
    shutil.rmtree(copy / "release")
    run(copy)
    for name in ("model.ckpt-3", "release/bert_model.ckpt"):
        assert_same(read(copy / name), read(done / name))


@pytest.mark.slow
def test_selection_accumulation_and_replicas(run, tmp_path, two_devices):
    """The release has the weights of the best evaluation, merged."""
    flags = {**two_devices, "gradient_accumulation_steps": 2}
    run(tmp_path, **flags, num_seeds=2, save_best="eval_accuracy")
    scores = json.loads((tmp_path / "eval_results.json").read_text())
    released = weights(tmp_path / "release" / "bert_model.ckpt")
    assert not any("lora" in name for name in released)
    # The weights of the best evaluation, which have the adapters.
    shutil.rmtree(tmp_path / "release")
    run(tmp_path, do_train=None, do_predict=None, num_seeds=2)
    again = json.loads((tmp_path / "eval_results.json").read_text())
    assert again["weights_sha256"] == scores["weights_sha256"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [spans, tags])
def test_other_scripts(kind, tmp_path):
    script, words, flags = kind(tmp_path)
    start = tmp_path / "start"
    fine_tuning_runs.write_release(start, ("0", "1"), words)
    flags |= {"init_checkpoint": start, "lora_rank": 2}
    fine_tuning_runs.run(script, tmp_path / "out", **flags)
    assert (tmp_path / "out" / "release" / "lora").exists()
