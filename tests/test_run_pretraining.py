"""run_pretraining.py from its command line to its files.

Most tests run it in this process, as TensorFlow takes seconds to start.
"""

import json
import os
import re
import shutil

import in_process
import numpy as np
import pytest
import tensorflow as tf
from fine_tuning_runs import results
from small_pretraining import (
    CONFIG,
    LENGTH,
    PREDICTIONS,
    SPECIAL,
    arguments,
    contents,
    read,
    write_inputs,
)

from bert_tf.config import BertConfig
from bert_tf.data.schema import pretraining_schema
from bert_tf.heads import BertPretrainer
from bert_tf.interop import conversion
from bert_tf.jobs import output_folder
from bert_tf.modeling import checkpoint_variables
from bert_tf.pretrained import open_pretrained
from bert_tf.training import checkpoints
from bert_tf.training.weights import restore
from tests import programs

EVAL_KEYS = [
    "global_step",
    "loss",
    "masked_lm_accuracy",
    "masked_lm_loss",
    "next_sentence_accuracy",
    "next_sentence_loss",
]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A folder with records, a configuration and a vocabulary."""
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    return folder


@pytest.fixture(scope="module")
def launch():
    with in_process.script("run_pretraining") as launch:
        yield launch


@pytest.fixture
def run(launch, inputs):
    """Runs the script with the usual flags and some changes."""

    def call(output_dir, **changes):
        assert launch(arguments(inputs, output_dir, **changes)) == 0

    return call


def assert_same(prefix, other, atol=0.0):
    tensors, others = read(prefix), read(other)
    assert tensors.keys() == others.keys()
    for name, value in tensors.items():
        np.testing.assert_allclose(
            others[name], value, rtol=0, atol=atol, err_msg=name
        )


# ------------------------------------------------------------- locking


def test_only_one_training_may_use_a_folder(launch, inputs, tmp_path, capsys):
    folder = tmp_path / "out"
    assert launch(arguments(inputs, folder)) == 0
    before = contents(folder)
    with output_folder.locked(str(folder)):
        assert launch(arguments(inputs, folder, num_train_steps=9)) == 1
        line = in_process.the_error(capsys, "run_pretraining")
        assert f"Process {os.getpid()} is writing to {folder}. Wait" in line
        assert contents(folder) == before
        words = arguments(inputs, folder, do_train=False, do_eval=True)
        assert launch(words) == 0


# -------------------------------------------------------------- outputs


@pytest.fixture(scope="module")
def done(launch, inputs, tmp_path_factory):
    """The folder of a run with all outputs."""
    folder = tmp_path_factory.mktemp("done")
    words = arguments(
        inputs,
        folder,
        do_eval=True,
        eval_input_file=inputs / "held_out.tfrecord",
        eval_steps=3,
        log_steps=2,
        vocab_file=inputs / "vocab.txt",
    )
    assert launch(words) == 0
    return folder


def test_the_files_of_a_run(done):
    names = {
        re.sub(r"tfevents.*", "tfevents", str(path.relative_to(done)))
        for path in contents(done)
    }
    assert names == {
        "checkpoint",
        "eval/events.out.tfevents",
        "eval_results.txt",
        "evaluations.jsonl",
        "events.out.tfevents",
        "model.ckpt-3.data-00000-of-00001",
        "model.ckpt-3.index",
        "model.ckpt-6.data-00000-of-00001",
        "model.ckpt-6.index",
        "pretraining.json",
        "release/bert_config.json",
        "release/bert_tf.json",
        "release/bert_model.ckpt.data-00000-of-00001",
        "release/bert_model.ckpt.index",
        "release/vocab.txt",
    }


def test_results_have_the_originals_keys(done):
    metrics = results(done)
    assert list(metrics) == EVAL_KEYS
    assert metrics["global_step"] == 6
    assert metrics["loss"] == pytest.approx(
        metrics["masked_lm_loss"] + metrics["next_sentence_loss"]
    )


def test_the_release_is_a_complete_model(done, inputs):
    folder = done / "release"
    config = BertConfig.from_json_file(str(folder / "bert_config.json"))
    assert config == BertConfig.from_dict(CONFIG)
    vocab = (folder / "vocab.txt").read_bytes()
    assert vocab == (inputs / "vocab.txt").read_bytes()
    model = BertPretrainer(config)
    model.build()
    variables = checkpoint_variables(model)
    prefix = checkpoints.find(str(folder))
    report = restore(variables, checkpoints.Reader(prefix))
    assert report.missing == report.left_over == ()
    assert set(read(prefix)) == set(variables)
    trained = read(done / "model.ckpt-6")
    for name, variable in variables.items():
        np.testing.assert_array_equal(variable, trained[name], err_msg=name)


def test_evaluation_equals_the_model_on_the_held_out_file(done, inputs):
    """Computed from the release and the file, without the training loop."""
    model = BertPretrainer(BertConfig.from_dict(CONFIG))
    model.build()
    prefix = checkpoints.find(str(done / "release"))
    restore(checkpoint_variables(model), checkpoints.Reader(prefix))
    spec = {
        feature.name: tf.io.FixedLenFeature(feature.shape, feature.dtype)
        for feature in pretraining_schema(LENGTH, PREDICTIONS)
    }
    path = str(inputs / "held_out.tfrecord")
    raw = list(tf.data.TFRecordDataset(path).as_numpy_iterator())
    assert len(raw) == 7
    features = tf.io.parse_example(raw, spec)
    logits = model(features)["masked_lm_logits"].numpy()
    weights = features["masked_lm_weights"].numpy()
    right = logits.argmax(-1) == features["masked_lm_ids"].numpy()
    assert results(done)["masked_lm_accuracy"] == pytest.approx(
        (right * weights).sum() / weights.sum()
    )


def test_summaries_have_the_rate_and_every_loss(done):
    [path] = done.glob("events.out.tfevents.*")
    tags = {}
    for raw in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
        event = tf.compat.v1.Event.FromString(raw)
        for value in event.summary.value:
            tags.setdefault(value.tag, []).append(event.step)
    assert tags.keys() == {
        "loss",
        "masked_lm_loss",
        "next_sentence_loss",
        "gradient_norm",
        "learning_rate",
        "examples_per_second",
        "tokens_per_second",
    }
    assert tags["learning_rate"] == [2, 4, 6]


def test_rerunning_the_command_resumes(done, run, tmp_path, inputs):
    """From the middle checkpoint to the same end, bit for bit."""
    folder = tmp_path / "out"
    shutil.copytree(done, folder)
    (folder / "model.ckpt-6.index").unlink()
    shutil.rmtree(folder / "release")
    run(folder)
    assert_same(folder / "model.ckpt-6", done / "model.ckpt-6")
    prefix = "release/bert_model.ckpt"
    assert_same(folder / prefix, done / prefix)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {
                "attention_direction": "left_to_right",
                "objective": "causal_lm",
                "next_sentence": False,
            },
            "was trained with attention_direction=bidirectional",
        ),
        ({"next_sentence": False}, "was trained with next_sentence=true"),
    ],
)
def test_a_run_without_a_release_keeps_its_kind(
    done, says, tmp_path, changes, words
):
    """The shapes of the tensors do not show the kind."""
    folder = tmp_path / "out"
    shutil.copytree(done, folder)
    shutil.rmtree(folder / "release")
    before = contents(folder)
    assert words in says(folder, num_train_steps=9, **changes)
    assert contents(folder) == before


@pytest.mark.slow
def test_a_trained_head_may_be_left_out_of_the_evaluation(done, run, tmp_path):
    folder = tmp_path / "out"
    shutil.copytree(done, folder)
    run(folder, do_train=None, do_eval=True, next_sentence=False)
    assert "next_sentence_loss" not in results(folder)


def test_a_finished_run_is_only_evaluated(done, run, tmp_path, inputs):
    folder = tmp_path / "out"
    shutil.copytree(done, folder)
    before = contents(folder)
    run(folder, do_eval=True, eval_input_file=inputs / "held_out.tfrecord")
    assert contents(folder) == before


@pytest.mark.parametrize("to", ["", "huggingface", "keras"])
def test_a_release_in_every_format_has_the_same_metrics(
    done, run, tmp_path, inputs, to
):
    release = done / "release"
    if to:
        planned = conversion.plan(open_pretrained(release), to)
        release = tmp_path / to
        release.mkdir()
        conversion.write(planned, str(release))
    run(
        tmp_path / "out",
        do_train=None,
        do_eval=True,
        init_checkpoint=release,
        eval_input_file=inputs / "held_out.tfrecord",
        max_eval_steps=0,
    )
    assert os.listdir(tmp_path / "out") == ["eval_results.txt"]
    found, expected = results(tmp_path / "out"), results(done)
    assert found.pop("global_step") == 0
    assert expected.pop("global_step") == 6
    assert found == expected


def test_the_release_records_the_casing(run, inputs, tmp_path):
    """It is taken from the manifest of the records."""
    shutil.copy(inputs / "a.tfrecord", tmp_path)
    settings = {"do_lower_case": False, "strip_accents": True}
    manifest = tmp_path / "manifest.a.tfrecord.json"
    manifest.write_text(json.dumps({"settings": settings}))
    records = tmp_path / "a.tfrecord"
    run(tmp_path / "out", input_file=records, num_train_steps=1)
    released = open_pretrained(tmp_path / "out" / "release")
    assert released.do_lower_case is False
    assert released.strip_accents is True
    assert released.head == "pretraining"


def test_the_config_may_come_from_the_checkpoint(done, run, tmp_path):
    release = done / "release"
    run(
        tmp_path,
        bert_config_file=None,
        init_checkpoint=release,
        num_train_steps=1,
    )
    made = (tmp_path / "release" / "bert_config.json").read_bytes()
    assert made == (release / "bert_config.json").read_bytes()


def test_random_heads_are_trained_but_not_evaluated(
    done, run, says, tmp_path, inputs
):
    planned = conversion.plan(
        open_pretrained(done / "release"), "huggingface", "encoder"
    )
    (tmp_path / "encoder").mkdir()
    conversion.write(planned, str(tmp_path / "encoder"))
    start = {"init_checkpoint": tmp_path / "encoder"}
    run(tmp_path / "trained", **start, num_train_steps=1)
    line = says(tmp_path / "out", **start, do_train=None, do_eval=True)
    assert "both pre-training heads is needed to evaluate" in line
    assert "lacks cls/predictions/" in line


def test_a_checkpoint_with_other_attention_heads(done, says, tmp_path, inputs):
    """The shapes are the same."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**CONFIG, "num_attention_heads": 4}))
    line = says(
        tmp_path / "out",
        bert_config_file=config,
        init_checkpoint=done / "release",
    )
    assert "num_attention_heads of the model" in line


def test_a_config_of_hugging_face(done, run, tmp_path, inputs):
    """Its "gelu" is the erf form, which the release records."""
    theirs = {**CONFIG, "model_type": "bert", "hidden_act": "gelu"}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(theirs))
    run(tmp_path / "out", bert_config_file=path, num_train_steps=1)
    config = open_pretrained(tmp_path / "out" / "release").config
    assert config.hidden_act == "gelu_erf"


def test_without_next_sentence_and_in_micro_batches(run, tmp_path):
    run(
        tmp_path,
        do_eval=True,
        next_sentence=False,
        gradient_accumulation_steps=3,
        num_train_steps=2,
    )
    assert list(results(tmp_path)) == [
        "global_step",
        "loss",
        "masked_lm_accuracy",
        "masked_lm_loss",
    ]
    untrained = "cls/seq_relationship/output_weights/adam_v"
    assert not read(tmp_path / "model.ckpt-2")[untrained].any()


def test_bfloat16_and_lamb(run, tmp_path):
    run(
        tmp_path,
        mixed_precision="bfloat16",
        optimizer="lamb",
        num_train_steps=2,
        num_warmup_steps=0,
    )
    tensors = read(tmp_path / "model.ckpt-2")
    floats = {v.dtype for k, v in tensors.items() if "/" in k} - {
        np.dtype("int64")
    }
    assert floats == {np.dtype("float32")}


def test_records_of_the_original_can_be_trained_on(run, shared_data, tmp_path):
    config = {**CONFIG, "vocab_size": 30522, "max_position_embeddings": 128}
    (tmp_path / "config.json").write_text(json.dumps(config))
    folder = shared_data / "google_bert_outputs" / "pretraining"
    run(
        tmp_path / "out",
        do_eval=True,
        input_file=folder / "tf_examples.tfrecord",
        bert_config_file=tmp_path / "config.json",
        vocab_file=shared_data / "vocab" / "bert-base-uncased-vocab.txt",
        max_seq_length=128,
        max_predictions_per_seq=20,
        num_train_steps=2,
        max_eval_steps=3,
    )
    metrics = results(tmp_path / "out")
    assert list(metrics) == EVAL_KEYS
    # Random guesses: ln 30522 and ln 2.
    assert metrics["masked_lm_loss"] == pytest.approx(10.33, abs=0.1)
    assert metrics["next_sentence_loss"] == pytest.approx(0.69, abs=0.1)


# ---------------------------------------------------------- error messages


@pytest.fixture
def says(launch, inputs, capsys):
    """Runs a job that fails; returns its one line of error."""

    def fail(output_dir, **changes):
        assert launch(arguments(inputs, output_dir, **changes)) in (1, 2)
        return in_process.the_error(capsys, "run_pretraining")

    return fail


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"input_file": "/none/*.tfrecord"}, "'/none/*.tfrecord'"),
        ({"eval_input_file": "/none/x", "do_eval": True}, "'/none/x'"),
        ({"bert_config_file": "/none/config.json"}, "/none/config.json: No"),
        ({"max_seq_lenght": 9}, "Did you mean: max_seq_length"),
        ({"max_seq_length": 14}, "max_position_embeddings"),
        ({"max_seq_length": 0}, "--max_seq_length must be at least 1; got 0"),
        ({"max_predictions_per_seq": 4}, "Pass --max_predictions_per_seq=3"),
        ({"max_seq_length": 12}, "Pass --max_seq_length=11"),
        ({"do_train": None}, "one or several of --do_train, --do_eval"),
        (
            {"do_train": None, "do_eval": True},
            "out to evaluate. Name one by --init",
        ),
        (
            {"init_checkpoint": "/none/x.ckpt"},
            "no such checkpoint",
        ),
        ({"gradient_accumulation_steps": 4}, "--train_batch_size"),
        (
            {"learning_rate": -1},
            "--learning_rate must be above 0 and finite; got -1.0",
        ),
        ({"random_seed": 2**31}, "--random_seed must be at most 2147483647"),
        ({"max_eval_steps": -1}, "--max_eval_steps must be at least 0; got -1"),
        ({"vocab_file": "/none/vocab.txt"}, "/none/vocab.txt"),
        ({"distribution_strategy": "tpu"}, "--tpu_name=local"),
    ],
)
def test_mistakes_in_flags(says, tmp_path, changes, expected):
    folder = tmp_path / "out"
    assert expected in says(folder, **changes)
    assert not folder.exists() or not os.listdir(folder)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"hidden_sise": 8}, "Did you mean 'hidden_size'?"),
        ({"num_attention_heads": 3}, "num_attention_heads"),
        ({"vocab_size": 29}, "Make the records with the vocabulary of this"),
    ],
)
def test_mistakes_in_the_configuration(says, tmp_path, changes, expected):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**CONFIG, **changes}))
    assert expected in says(tmp_path / "out", bert_config_file=config)
    assert not list(tmp_path.rglob("model.ckpt*"))


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([*SPECIAL, *"abcdefghijklmnopqrstuvwxyz", "z1"], "has 32 tokens"),
        (SPECIAL[:-1], "but not [MASK]"),
    ],
)
def test_mistakes_in_the_vocabulary(says, tmp_path, tokens, expected):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(tokens))
    assert expected in says(tmp_path / "out", vocab_file=path)
    assert not (tmp_path / "out").exists()


def test_a_text_file_instead_of_records(says, inputs, tmp_path):
    line = says(tmp_path / "out", input_file=inputs / "vocab.txt")
    assert f"{inputs}/vocab.txt is not a TFRecord file" in line


def test_truncated_records(says, inputs, tmp_path):
    whole = (inputs / "a.tfrecord").read_bytes()
    path = tmp_path / "cut.tfrecord"
    path.write_bytes(whole[:-20])
    line = says(tmp_path / "out", input_file=path)
    assert f"{path} is cut off within record 16" in line


def test_a_damaged_evaluation_file_is_found_before_training(
    says, inputs, tmp_path
):
    path = tmp_path / "cut.tfrecord"
    path.write_bytes((inputs / "held_out.tfrecord").read_bytes()[:-20])
    folder = tmp_path / "out"
    for changes in ({"do_eval": True}, {"eval_steps": 3}):
        line = says(folder, eval_input_file=path, **changes)
        assert f"{path} is cut off within record 6" in line
        assert not folder.exists()


def test_an_output_directory_that_is_a_file(says, tmp_path):
    path = tmp_path / "out"
    path.write_text("mine")
    assert f"{path} is a file" in says(path)
    assert path.read_text() == "mine"


def test_a_checkpoint_of_another_shape(says, done, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**CONFIG, "intermediate_size": 13}))
    before = contents(done)
    for folder, initial in ((done, None), (tmp_path / "out", done)):
        line = says(folder, bert_config_file=config, init_checkpoint=initial)
        assert "intermediate/dense/kernel of shape [8, 13]" in line
        assert "found [8, 11]" in line
    assert contents(done) == before
    assert not (tmp_path / "out").exists()


def test_divergence_is_one_line(says, tmp_path):
    line = says(tmp_path, learning_rate=1e30, num_warmup_steps=0)
    assert "step 2: loss nan" in line
    assert "Lower --learning_rate" in line
    assert not list(tmp_path.glob("model.ckpt*"))


# ------------------------------------------------------- real processes


def test_stderr_has_only_the_error(inputs, tmp_path):
    words = arguments(inputs, tmp_path / "out", input_file=None)
    program = programs.start_as_users_do(words, tmp_path / "log")
    assert program.end() == 2
    [line] = program.said
    assert "--input_file" in line


def test_a_configuration_is_required(says, tmp_path):
    line = says(tmp_path, bert_config_file=None)
    assert "Give --bert_config_file, --model_size, or an --init" in line


@pytest.fixture
def without_dropout(tmp_path):
    """A configuration without dropout, whose masks differ between replicas."""
    path = tmp_path / "config.json"
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    path.write_text(json.dumps({**CONFIG, **off}))
    return path


@pytest.mark.slow
def test_two_workers_equal_one_device(inputs, run, without_dropout, tmp_path):
    changes = {
        "do_eval": True,
        "eval_input_file": inputs / "held_out.tfrecord",
        "eval_steps": 3,
        "log_steps": 2,
        "bert_config_file": without_dropout,
    }
    alone, chief, other = (tmp_path / x for x in ("alone", "chief", "other"))
    run(alone, **changes)
    workers = [
        programs.start(
            arguments(inputs, folder, **changes),
            tmp_path / f"{folder.name}.log",
            place,
        )
        for folder, place in zip(
            (chief, other), programs.places_of_workers(), strict=True
        )
    ]
    assert [worker.end() for worker in workers] == [0, 0]
    assert not contents(other)
    assert len(contents(chief)) == len(contents(alone))
    for name in ("model.ckpt-3", "model.ckpt-6", "release/bert_model.ckpt"):
        assert_same(chief / name, alone / name, atol=1e-6)
    assert results(chief) == pytest.approx(results(alone), rel=1e-5)
