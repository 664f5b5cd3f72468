"""run_pretraining.py from its command line to its files, in this process."""

import json
import os
import shutil

import in_process
import numpy as np
import pytest
import tensorflow as tf
from fine_tuning_runs import (
    assert_same,
    contents,
    files_of_a_run,
    names_in,
    read,
    results,
)
from small_pretraining import (
    CONFIG,
    LENGTH,
    PREDICTIONS,
    SPECIAL,
    VOCAB,
    arguments,
    examples,
    write,
    write_inputs,
)

from bert_tf.checkpoints import conversion
from bert_tf.checkpoints.pretrained import open_pretrained
from bert_tf.config import BertConfig
from bert_tf.data import pipeline
from bert_tf.data.records import pretraining_schema
from bert_tf.data.sequence_packing import SequencePacking
from bert_tf.errors import InputError
from bert_tf.jobs import output_folder
from bert_tf.modeling.heads import BertPretrainer
from bert_tf.modeling.variables import checkpoint_variables

pytestmark = pytest.mark.usefixtures("eager_fixtures", "eagerly")

SCRIPT_NAME = "run_pretraining"
METRICS = [
    "global_step",
    "loss",
    "masked_lm_accuracy",
    "masked_lm_loss",
    "next_sentence_accuracy",
    "next_sentence_loss",
]
EVALUATION = {"do_train": None, "do_eval": True, "max_eval_steps": 0}
ONE_STEP = {"num_train_steps": 1, "num_warmup_steps": 0}
# The paper's "LTR & No NSP", section 5.1.
CAUSAL = {
    "attention_direction": "left_to_right",
    "objective": "causal_lm",
    "next_sentence": False,
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A folder with records, a configuration and a vocabulary."""
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    return folder


@pytest.fixture(scope="module")
def run(launch, inputs):
    """Runs the script with the usual flags and some changes."""

    def call(output_dir, **changes):
        assert launch(arguments(inputs, output_dir, **changes)) == 0

    return call


@pytest.fixture
def says(launch, inputs, capsys):
    """Runs a job that fails; returns its one line of error."""

    def fail(output_dir, **changes):
        assert launch(arguments(inputs, output_dir, **changes)) in (1, 2)
        return in_process.the_error(capsys, "run_pretraining")

    return fail


def write_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**CONFIG, **changes}))
    return path


def converted(release, to, folder, *parts):
    """Returns a new folder with a release in another format."""
    planned = conversion.plan(open_pretrained(release), to, *parts)
    folder.mkdir()
    conversion.write(planned, str(folder))
    return folder


@pytest.fixture(scope="module")
def done(run, inputs, tmp_path_factory):
    """The folder of a run with all outputs."""
    folder = tmp_path_factory.mktemp("done")
    run(
        folder,
        do_eval=True,
        eval_input_file=inputs / "held_out.tfrecord",
        eval_steps=6,
        log_steps=2,
        vocab_file=inputs / "vocab.txt",
    )
    return folder


@pytest.fixture
def copied(done, tmp_path):
    """A copy of that folder, at the last step."""
    return shutil.copytree(done, tmp_path / "out")


def test_the_files_of_a_run(done):
    others = {"eval_results.json", "fine_tuning.json"}
    assert names_in(done) == files_of_a_run(3, 6) - others | {
        *("eval/events.out.tfevents", "evaluations.jsonl", "pretraining.json"),
    }
    [path] = done.glob("events.out.tfevents.*")
    tags = {}
    for raw in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
        event = tf.compat.v1.Event.FromString(raw)
        for value in event.summary.value:
            tags.setdefault(value.tag, []).append(event.step)
    names = ["masked_lm_loss", "next_sentence_loss", "loss", "gradient_norm"]
    names += ["learning_rate", "examples_per_second", "tokens_per_second"]
    assert tags == {name: [2, 4, 6] for name in names}


def test_the_release_and_the_metrics(done, inputs):
    folder = done / "release"
    released = open_pretrained(folder)
    assert released.config == BertConfig.from_dict(CONFIG)
    assert released.head == "pretraining"
    vocab = (folder / "vocab.txt").read_bytes()
    assert vocab == (inputs / "vocab.txt").read_bytes()
    variables = checkpoint_variables(BertPretrainer.from_pretrained(folder))
    assert {*variables} == {*read(folder / "bert_model.ckpt")}
    trained = read(done / "model.ckpt-6")
    for name, variable in variables.items():
        np.testing.assert_array_equal(variable, trained[name], err_msg=name)
    metrics = results(done)
    assert list(metrics) == METRICS
    assert metrics["global_step"] == 6
    losses = metrics["masked_lm_loss"] + metrics["next_sentence_loss"]
    assert metrics["loss"] == pytest.approx(losses)


def test_rerunning_the_command_resumes(done, run, copied):
    """From the middle checkpoint to the same end, bit for bit."""
    (copied / "model.ckpt-6.index").unlink()
    shutil.rmtree(copied / "release")
    run(copied)
    for prefix in ("model.ckpt-6", "release/bert_model.ckpt"):
        assert_same(read(copied / prefix), read(done / prefix))


def test_a_finished_run_is_only_evaluated(run, copied, inputs):
    before = contents(copied)
    run(copied, do_eval=True, eval_input_file=inputs / "held_out.tfrecord")
    assert contents(copied) == before


def test_only_one_training_may_use_a_folder(says, run, copied):
    """Others can evaluate, also without a head that was trained."""
    before = contents(copied)
    with output_folder.locked(str(copied)):
        line = says(copied, num_train_steps=9)
        assert f"Another process is writing to {copied}. Wait" in line
        assert contents(copied) == before
        run(copied, **EVALUATION, next_sentence=False)
    assert list(results(copied)) == METRICS[:4]


def test_an_encoder_is_trained_with_its_configuration(
    done, run, says, tmp_path
):
    """Its heads are random and cannot be evaluated."""
    release = done / "release"
    theirs = converted(release, "huggingface", tmp_path / "in", "encoder")
    start = {"init_checkpoint": theirs, "bert_config_file": None}
    run(tmp_path / "trained", **start, **ONE_STEP)
    made = open_pretrained(tmp_path / "trained" / "release")
    assert made.config == open_pretrained(release).config
    line = says(tmp_path / "out", **start, **EVALUATION)
    assert "lacks cls/predictions/" in line
    assert "pass a checkpoint with both heads of pre-training" in line


def test_a_named_size_in_half_precision_with_lamb(run, inputs, tmp_path):
    run(
        tmp_path,
        bert_config_file=None,
        model_size="L-1_H-8_A-2",
        vocab_file=inputs / "vocab.txt",
        mixed_precision="bfloat16",
        optimizer="lamb",
        **ONE_STEP,
    )
    config = open_pretrained(tmp_path / "release").config
    assert config == BertConfig.from_name("L-1_H-8_A-2", VOCAB)
    tensors = read(tmp_path / "model.ckpt-1")
    assert {v.dtype.name for v in tensors.values()} == {"float32", "int64"}


@pytest.fixture
def without_labels(tmp_path):
    """Records without the labels of the next sentence."""
    batch = examples(17)
    del batch["next_sentence_labels"]
    write(tmp_path / "plain.tfrecord", batch)
    settings = {"do_lower_case": False, "strip_accents": True}
    manifest = tmp_path / "manifest.plain.tfrecord.json"
    manifest.write_text(json.dumps({"settings": settings}))
    return tmp_path / "plain.tfrecord"


def test_without_next_sentence(run, without_labels, tmp_path):
    """With micro-batches, a manifest and a file of Hugging Face."""
    folder, theirs = tmp_path / "out", {"model_type": "bert"}
    run(
        folder,
        next_sentence=False,
        input_file=without_labels,
        bert_config_file=write_config(tmp_path, **theirs, hidden_act="gelu"),
        **ONE_STEP,
        do_eval=True,
        gradient_accumulation_steps=3,
    )
    assert list(results(folder)) == METRICS[:4]
    untrained = "cls/seq_relationship/output_weights/adam_v"
    assert not read(folder / "model.ckpt-1")[untrained].any()
    released = open_pretrained(folder / "release")
    assert released.head == "masked_lm"
    assert (released.do_lower_case, released.strip_accents) == (False, True)
    assert released.config.hidden_act == "gelu_erf"


@pytest.fixture(scope="module")
def causal(run, inputs, tmp_path_factory):
    """The folder of a causal LM, trained and evaluated."""
    folder = tmp_path_factory.mktemp("causal")
    vocab = inputs / "vocab.txt"
    run(folder, do_eval=True, vocab_file=vocab, **CAUSAL, num_train_steps=2)
    return folder


def test_a_causal_lm_is_trained_on_records_of_masked_words(causal, run):
    found = results(causal)
    names = ["causal_lm_accuracy", "causal_lm_loss", "global_step", "loss"]
    assert list(found) == [*names, "perplexity"]
    assert found["perplexity"] == pytest.approx(np.exp(found["loss"]))
    moments = read(causal / "model.ckpt-2")
    assert moments["cls/predictions/output_bias/adam_v"].all()
    assert not moments["cls/seq_relationship/output_weights/adam_v"].any()
    released = open_pretrained(causal / "release")
    assert released.config.is_left_to_right
    assert (released.objective, released.head) == ("causal_lm", "masked_lm")
    # The configuration of the release has the direction.
    config = causal / "release" / "bert_config.json"
    evaluation = {**EVALUATION, **CAUSAL, "attention_direction": None}
    run(causal, **evaluation, bert_config_file=config)
    assert results(causal) == found


def test_a_causal_lm_cannot_be_used_as_another(causal, tmp_path, capsys):
    release = causal / "release"
    with in_process.script("fill_mask") as launch:
        words = [f"--init_checkpoint={release}", "--text=w1 [MASK]"]
        assert launch(words) == 1
    line = in_process.the_error(capsys, "fill_mask")
    assert "was trained to predict the next word (objective causal_lm)" in line
    with pytest.raises(InputError, match="attention_direction of a Hugging F"):
        converted(release, "huggingface", tmp_path / "theirs")


def test_a_run_keeps_its_kind(done, says, tmp_path):
    """The shapes of the tensors do not show the kind."""
    before = contents(done)
    heads = write_config(tmp_path, num_attention_heads=4, hidden_act="relu")
    changes = {**CAUSAL, "bert_config_file": heads, "num_train_steps": 9}
    line = says(done, **changes)
    for name, value in (
        ("attention_direction", "'bidirectional', not 'left_to_right'"),
        ("objective", "'masked_lm', not 'causal_lm'"),
        ("next_sentence", "True, not False"),
        ("num_attention_heads", "2, not 4"),
        ("hidden_act", "'gelu_tanh', not 'relu'"),
    ):
        assert f"{name}={value}" in line
    assert contents(done) == before


@pytest.mark.slow
@pytest.mark.graph
def test_packed_rows_in_two_phases(run, inputs, tmp_path, caplog):
    """The phases equal one run, and results those of rows without packing."""
    caplog.set_level("INFO")
    whole, phases = tmp_path / "whole", tmp_path / "phases"
    run(whole, pack_sequences=True)
    [line] = [m for m in caplog.messages if m.startswith("Packing, ")]
    files = [str(inputs / name) for name in ("a.tfrecord", "b.tfrecord.gz")]
    schema = pretraining_schema(LENGTH, PREDICTIONS)
    fill = pipeline.fill(files, schema, SequencePacking())
    assert f"{100 * fill.packed:.1f} % with packing" in line
    assert line.endswith(f"about {6 * fill.examples_per_row:.0f} examples")

    run(phases, pack_sequences=True, stop_at_step=4)
    assert (phases / "release" / "bert_model.ckpt.index").exists()
    assert read(phases / "model.ckpt-4")["global_step"] == 4
    run(phases, pack_sequences=True)
    expected = read(whole / "model.ckpt-6")
    assert_same(read(phases / "model.ckpt-6"), expected)
    assert expected["training_state/examples_seen"] == 6 * 6

    for most in (0, 5):
        found = []
        for pack in (True, False):
            evaluation = {**EVALUATION, "max_eval_steps": most}
            run(whole, **evaluation, pack_sequences=pack)
            found.append(results(whole))
        assert found[0] == pytest.approx(found[1], abs=1e-6)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"bert_config_file": None}, "Pass --bert_config_file, --model_size,"),
        ({"max_seq_length": 14}, "max_position_embeddings"),
        ({"max_seq_length": 12}, "Pass --max_seq_length=11"),
        ({"max_predictions_per_seq": 4}, "Pass --max_predictions_per_seq=3"),
        (EVALUATION, "out to evaluate or export. Pass one as --init"),
        ({"gradient_accumulation_steps": 4}, "--train_batch_size must be a mu"),
        ({"objective": "causal_lm"}, "see the tokens that it must predict"),
        ({"vocab_file": [*SPECIAL, *map(str, range(27))]}, "has 32 tokens"),
        ({"vocab_file": SPECIAL[:-1]}, "but not [MASK]"),
    ],
)
def test_mistakes_in_flags(says, tmp_path, changes, expected):
    folder, words = tmp_path / "out", changes.get("vocab_file")
    if words:
        path = tmp_path / "vocab.txt"
        path.write_text("\n".join(words))
        changes = {"vocab_file": path}
    assert expected in says(folder, **changes)
    assert not folder.exists() or not os.listdir(folder)


def test_mistakes_in_records(says, inputs, without_labels, tmp_path):
    """Most are found before training."""
    folder, cut = tmp_path / "out", tmp_path / "cut.tfrecord"
    cut.write_bytes((inputs / "a.tfrecord").read_bytes()[:-20])
    made = tmp_path / "records" / "a.tfrecord"
    made.parent.mkdir()
    shutil.copy(inputs / "a.tfrecord", made)
    manifest = {"settings": {"next_sentence": False}}
    (made.parent / "manifest.a.tfrecord.json").write_text(json.dumps(manifest))
    text = inputs / "vocab.txt"
    for changes, expected in (
        ({"input_file": text}, f"{text} is not a TFRecord file"),
        ({"input_file": cut}, f"{cut} is truncated in record 16"),
        ({"eval_input_file": cut, "do_eval": True}, f"{cut} is truncated in"),
        ({"input_file": without_labels}, "next_sentence_labels"),
        ({"input_file": made}, f"{made} was made with --nonext_sentence."),
    ):
        assert expected in says(folder, **changes)
        assert not list(folder.glob("*.*"))
    line = says(folder, bert_config_file=write_config(tmp_path, vocab_size=29))
    assert "Make the records with the vocabulary of this" in line
    assert not list(folder.glob("model.ckpt*"))


def test_a_checkpoint_that_does_not_fit(says, done, tmp_path):
    """The shapes of the tensors are the same."""
    other = write_config(tmp_path, num_attention_heads=4)
    flags = {"bert_config_file": other, "init_checkpoint": done / "release"}
    line = says(tmp_path / "out", **flags)
    assert "num_attention_heads of the model" in line
    assert not (tmp_path / "out").exists()
