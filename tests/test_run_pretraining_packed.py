"""run_pretraining.py --pack_sequences, and runs of several phases."""

import json
import logging
import shutil

import in_process
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.data import pipeline
from bert_tf.data.records import RecordWriter, encode_batch
from bert_tf.data.schema import pretraining_schema
from bert_tf.data.sequence_packing import SequencePacking, first_fit
from bert_tf.tasks.pretraining import PretrainingTask
from bert_tf.training import checkpoints
from bert_tf.training.estimator import Estimator
from bert_tf.training.settings import TrainingConfig
from tests import packed_rows
from tests.training import toy_task

VOCAB, SHORT, LONG, P = 31, 7, 17, 3
CONFIG = {
    "vocab_size": VOCAB,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 11,
    "max_position_embeddings": LONG,
    "type_vocab_size": 2,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
SETTINGS = {
    "train_batch_size": 6,
    "eval_batch_size": 4,
    "num_train_steps": 6,
    "num_warmup_steps": 2,
    "learning_rate": 0.01,
    "save_checkpoints_steps": 3,
}


def examples(count, length, seed=0) -> dict[str, np.ndarray]:
    """Random examples of 3 tokens or more; every second one fills a row."""
    random = np.random.default_rng(seed)
    lengths = random.integers(3, length + 1, (count, 1))
    lengths[::2] = length
    mask = (np.arange(length) < lengths).astype("int32")
    masked = np.arange(P) < random.integers(0, 3, (count, 1))

    def integers(limit, *shape):
        return random.integers(0, limit, (count, *shape), dtype="int32")

    return {
        "input_ids": integers(VOCAB, length) * mask,
        "input_mask": mask,
        "segment_ids": integers(2, length) * mask,
        "masked_lm_positions": random.integers(0, 3, (count, P)) * masked,
        "masked_lm_ids": integers(VOCAB, P) * masked,
        "masked_lm_weights": masked.astype("float32"),
        "next_sentence_labels": integers(2, 1),
    }


def write(path, count, length, seed=0):
    batch = examples(count, length, seed)
    with RecordWriter(str(path)) as writer:
        writer.write_all(encode_batch(pretraining_schema(length, P), batch))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    for seed, name in enumerate("ab"):
        write(folder / f"{name}.{LONG}.tfrecord", 37, LONG, seed)
    write(folder / f"a.{SHORT}.tfrecord", 29, SHORT)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.fixture(scope="module")
def launch():
    with in_process.script("run_pretraining") as launch:
        yield launch


@pytest.fixture(scope="module")
def run(launch, inputs):
    """Trains on packed rows, with changes; None omits a flag."""

    def call(output_dir, length=LONG, **changes):
        values = {
            **SETTINGS,
            "do_train": True,
            "pack_sequences": True,
            "jit_compile": "false",
            "max_seq_length": length,
            "max_predictions_per_seq": P,
            "input_file": f"{inputs}/*.{length}.tfrecord",
            "bert_config_file": inputs / "config.json",
            "output_dir": output_dir,
            **changes,
        }
        words = [f"--{k}={v}" for k, v in values.items() if v is not None]
        assert launch(words) == 0

    return call


def read(folder, step=6):
    reader = checkpoints.Reader(str(folder / f"model.ckpt-{step}"))
    return {name: reader[name] for name in reader.shapes}


def assert_same(tensors, others, atol=0.0):
    assert tensors.keys() == others.keys()
    for name, value in tensors.items():
        np.testing.assert_allclose(
            others[name], value, rtol=0, atol=atol, err_msg=name
        )


@pytest.fixture(scope="module")
def whole(run, tmp_path_factory):
    """The folder of an undisturbed packed run."""
    folder = tmp_path_factory.mktemp("whole")
    run(folder)
    return folder


@pytest.mark.slow
def test_a_packed_run_resumes_exactly(whole, run, tmp_path):
    """From the middle checkpoint, bit for bit."""
    folder = tmp_path / "out"
    shutil.copytree(whole, folder)
    (folder / "model.ckpt-6.index").unlink()
    run(folder)
    assert_same(read(folder), read(whole))
    assert read(folder)["training_state/examples_seen"] == 6 * 6


@pytest.mark.slow
@pytest.mark.parametrize("most", [0, 5])
def test_evaluation_of_packed_rows_has_the_same_results(
    whole, run, tmp_path, most
):
    """Of all examples, and of the first few."""
    found = []
    for pack in (True, False):
        folder = tmp_path / f"{pack}"
        run(
            folder,
            do_train=None,
            do_eval=True,
            init_checkpoint=whole / "release",
            pack_sequences=pack,
            max_eval_steps=most,
        )
        lines = (folder / "eval_results.txt").read_text().splitlines()
        found.append(dict(line.split(" = ") for line in lines))
    packed, plain = ({k: float(v) for k, v in f.items()} for f in found)
    assert packed == pytest.approx(plain, abs=1e-6)


@pytest.mark.slow
def test_the_log_says_how_full_the_rows_are(run, tmp_path, caplog, inputs):
    with caplog.at_level(logging.INFO):
        run(tmp_path, num_train_steps=1, num_warmup_steps=0)
    [line] = [m for m in caplog.messages if m.startswith("Packing, ")]
    files = [str(inputs / f"{name}.{LONG}.tfrecord") for name in "ab"]
    schema = pretraining_schema(LONG, P)
    fill = pipeline.fill(files, schema, SequencePacking())
    assert f"measured on {fill.examples} examples: tokens fill" in line
    assert f"{100 * fill.unpacked:.1f} % of a row without packing" in line
    assert f"{100 * fill.packed:.1f} % with packing" in line
    assert line.endswith(f"about {6 * fill.examples_per_row:.0f} examples")


def trained(task, data, folder, **options) -> dict[str, np.ndarray]:
    """Returns the checkpoint after one or more steps."""
    strategy = options.pop("strategy", tf.distribute.get_strategy())
    config = TrainingConfig(**{**SETTINGS, **options}, jit_compile=False)
    estimator = Estimator(task, strategy, config, str(folder))
    estimator.train(data)
    return read(folder, config.last_step)


@pytest.mark.slow
def test_an_update_of_packed_rows_equals_that_of_their_examples(tmp_path):
    """Compares weights and moments, with clipping and both means."""
    batch = examples(23, LONG, seed=3)
    sizes = [batch["input_mask"].sum(1), np.full(23, 1)]
    row_of = first_fit(np.stack(sizes, 1).astype("int32"), [LONG, 4]).numpy()
    rows = [np.flatnonzero(row_of == row) for row in range(row_of.max() + 1)]
    assert max(map(len, rows)) > 1
    packed = packed_rows.pack(batch, rows, 4)
    task = PretrainingTask(BertConfig.from_dict(CONFIG), LONG, P)
    found, expected = (
        trained(
            task,
            toy_task.training_data(features),
            tmp_path / f"{len(features)}",
            train_batch_size=len(features["input_ids"]),
            stop_at_step=1,
            num_warmup_steps=0,
        )
        for features in (packed, batch)
    )
    for tensors in (found, expected):
        del tensors["training_state/examples_seen"]
    assert_same(found, expected, atol=1e-6)
    assert expected["bert/pooler/dense/kernel/adam_m"].any()


@pytest.mark.slow
def test_two_replicas_share_the_rows_of_one_device(inputs, tmp_path):
    """Also with micro-batches."""
    task = PretrainingTask(BertConfig.from_dict(CONFIG), LONG, P)
    files = [str(inputs / f"{name}.{LONG}.tfrecord") for name in "ab"]

    def data(**arguments):
        return pipeline.training_dataset(
            files, task.schema, seed=1, packing=SequencePacking(), **arguments
        )

    found, expected = (
        trained(
            task,
            data,
            tmp_path / f"{replicas}",
            strategy=toy_task.mirrored(replicas),
            gradient_accumulation_steps=3 if replicas == 2 else 1,
        )
        for replicas in (2, 1)
    )
    assert_same(found, expected, atol=1e-6)


# Phases.


@pytest.mark.slow
def test_two_phases_equal_one_run(whole, run, tmp_path):
    """They share the schedule, the optimizer and the count of steps."""
    run(tmp_path, stop_at_step=4)
    first = read(tmp_path, 4)
    assert first["global_step"] == 4
    assert (tmp_path / "release" / "bert_model.ckpt.index").exists()
    run(tmp_path)
    assert_same(read(tmp_path), read(whole))


@pytest.mark.slow
def test_the_second_phase_may_have_longer_records(run, tmp_path, caplog):
    first, second = {"length": SHORT, "pack_sequences": None}, {"length": LONG}
    run(tmp_path, stop_at_step=4, log_steps=1, **first)
    moments = read(tmp_path, 4)["bert/embeddings/word_embeddings/adam_m"]
    assert moments.any()
    before = read(tmp_path, 4)["bert/embeddings/position_embeddings"]
    with caplog.at_level(logging.INFO):
        run(tmp_path, stop_at_step=4, **first)
        run(tmp_path, log_steps=1, **second)
    assert "Nothing to train: step 4 of 4 is done" in caplog.messages
    assert any("Resuming at step 4" in line for line in caplog.messages)
    after = read(tmp_path)["bert/embeddings/position_embeddings"]
    changed = np.abs(after - before).max(axis=1)
    # Decay alone moves what phase 1 never saw: far less than gradients do.
    assert changed[SHORT:].min() > 1e-3
    assert [round(rate, 6) for rate in rates(tmp_path)] == [
        *(0.0, 0.005, 0.006667, 0.005),
        *(0.003333, 0.001667),
    ]


def rates(folder) -> list[float]:
    """Returns the learning rates of all steps, from the event files."""
    found = {}
    for path in folder.glob("events.out.tfevents.*"):
        for raw in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(raw)
            for value in event.summary.value:
                if value.tag == "learning_rate":
                    found[event.step] = float(tf.make_ndarray(value.tensor))
    return [found[step] for step in sorted(found)]
