"""The compiler of TPUs takes what the scripts run, and nothing else.

With jax and libtpu alone, which `make test-tf220` has.
"""

import json

import keras
import pytest
import tensorflow as tf

from bert_tf.config import BertConfig
from tests import in_process

CONFIG = BertConfig(
    vocab_size=31,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=11,
    max_position_embeddings=13,
    type_vocab_size=2,
)
LENGTH, BATCH, CHIPS = 13, 6, 2


@pytest.fixture(scope="module")
def compiler(benchmarks):
    pytest.importorskip("libtpu")
    return benchmarks("tpu_compiler")


@pytest.fixture
def steps(compiler, benchmarks):
    keras.config.set_dtype_policy("mixed_bfloat16")
    yield benchmarks("tpu_steps")
    keras.config.set_dtype_policy("float32")


@pytest.fixture(scope="module")
def chips(compiler, benchmarks):
    return benchmarks("tpu_chips").CHIPS


@pytest.fixture(scope="module")
def v5e(chips):
    return chips["v5e"]


# What the scripts can be told, each of it with one task.
SETTINGS = {
    "packed_pretraining": {"gradient_accumulation_steps": 2},
    "classification": {"adam_bias_correction": True},
    "multiple_choice": {"optimizer": "lamb"},
}
OPTIONS = {
    "classification": {"class_weights": (1.0, 2.0), "label_smoothing": 0.1},
    "spans": {"gradient_checkpointing": True},
    "tokens": {"frozen_layers": ("embeddings",)},
}


@pytest.mark.parametrize("kind", ["training", "prediction"])
@pytest.mark.parametrize(
    "task",
    [
        "pretraining",
        "packed_pretraining",
        "classification",
        "multiple_choice",
        "spans",
        "tokens",
    ],
)
def test_steps_of_the_scripts_compile(compiler, steps, v5e, task, kind):
    step = steps.Step(
        *(task, kind, CONFIG, LENGTH, BATCH),
        settings=SETTINGS.get(task, {}),
        options=OPTIONS.get(task, {}),
    )
    text = step.lower(CHIPS)
    assert "stablehlo.all_reduce" in text
    memory = compiler.compile_for(v5e, text, CHIPS)
    assert memory.total > memory.arguments > 0
    if kind == "training":
        # Weights and moments are written where they were read.
        weights = 4 * 3 * CONFIG.hidden_size * CONFIG.vocab_size
        assert memory.outputs < weights < memory.arguments


def test_all_tasks_are_tried(steps):
    (marks,) = (
        mark
        for mark in test_steps_of_the_scripts_compile.pytestmark
        if mark.args[0] == "task"
    )
    assert marks.args[1] == list(steps.TASKS)


# What a TPU cannot do is found out.


class WithoutPadding:
    """A task that leaves padding out: how much that is, the batch decides."""

    def __init__(self, task):
        self._task = task

    def __getattr__(self, name):
        return getattr(self._task, name)

    def predictions(self, features, outputs):
        mask = features["input_mask"] > 0
        extra = tf.reduce_sum(tf.boolean_mask(features["segment_ids"], mask))
        kept = self._task.predictions(features, outputs)
        return {name: x + tf.cast(extra, x.dtype) for name, x in kept.items()}


def test_a_step_whose_shapes_depend_on_the_data(steps, monkeypatch):
    make = steps.TASKS["tokens"]
    monkeypatch.setitem(
        steps.TASKS, "tokens", lambda *args: WithoutPadding(make(*args))
    )
    step = steps.Step("tokens", "prediction", CONFIG, LENGTH, BATCH)
    with pytest.raises(ValueError, match=r"whose shapes are known.*tensor<\?"):
        step.lower(CHIPS)


def test_batches_of_several_lengths(steps, monkeypatch):
    """As they are made for CPUs and GPUs."""
    padding = steps.buckets.Padding()
    monkeypatch.setattr(steps.bucketing, "Padding", lambda static: padding)
    step = steps.Step("tokens", "prediction", CONFIG, LENGTH, BATCH)
    with pytest.raises(ValueError, match="expected shapes that are known"):
        step.lower(CHIPS)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: tf.gather(x, tf.where(x[:, 0] > 0)[:, 0]), "are known"),
        (lambda x: tf.strings.length(tf.strings.as_string(x)), "AsString"),
        (lambda x: tf.numpy_function(abs, [x], tf.float32), "PyFunc"),
        (lambda x: tf.range(tf.cast(x[0, 0], tf.int32)), "compile-time const"),
    ],
    ids=["where", "strings", "python", "range"],
)
def test_what_xla_cannot_lower(compiler, function, message):
    with pytest.raises(ValueError, match=message):
        compiler.lower(function, [tf.TensorSpec((3, 5))])


def test_unknown_shapes(compiler):
    with pytest.raises(ValueError, match=r"Received: TensorSpec.*None, 5"):
        compiler.lower(tf.abs, [tf.TensorSpec((None, 5))])


def test_what_a_chip_has_for_programs(compiler, chips):
    """As its compiler says, which refuses a program that is too large."""
    for chip in chips.values():
        share = compiler.available_memory(chip) / chip.memory
        assert 0.95 < share < 1.01


def test_dropout_draws_what_a_tpu_draws(compiler, v5e):
    """Philox would take a hundred times the memory of its result."""

    def draw(seed):
        return tf.random.stateless_uniform([1024, 1024], seed)

    text = compiler.lower(draw, [tf.TensorSpec((2,), tf.int32)])
    assert "PHILOX" in text
    memory = compiler.compile_for(v5e, text)
    assert memory.outputs == 4 * 1024**2
    assert memory.temporaries <= memory.outputs


# The program.


@pytest.fixture(scope="module")
def launch(compiler):
    with in_process.script("tpu_compile_one") as launch:
        yield launch


WORDS = (
    *("--task=classification", "--kind=prediction", "--model=L-1_H-128_A-2"),
    *("--max_seq_length=7", "--batch_size=3", "--chip=v6e"),
)


def test_an_answer(launch, chips, capsys):
    assert launch(WORDS) == 0
    answer = json.loads(capsys.readouterr().out)
    assert 0.95 < answer["available"] / chips["v6e"].memory < 1
    vocabulary = 4 * 30522 * 128
    assert vocabulary < answer["memory"].pop("arguments") < 1.2 * vocabulary
    assert set(answer["memory"]) == {"temporaries", "outputs", "program"}


def test_too_much(launch, compiler, monkeypatch, capsys):
    def refuse(*_):
        raise compiler.OutOfMemoryError("RESOURCE_EXHAUSTED")

    monkeypatch.setattr(compiler, "available_memory", lambda chip: 31)
    monkeypatch.setattr(compiler, "compile_for", refuse)
    assert launch(WORDS) == 0
    assert json.loads(capsys.readouterr().out) == {
        "memory": None,
        "available": 31,
    }
