"""The largest batch of TPUs: its search, its page, and the compiler.

The tests of the compiler need jax and libtpu, which `make test-tf220` has.
"""

import json
import pathlib

import keras
import pytest
import tensorflow as tf

from bert_tf import BertConfig
from bert_tf.errors import InputError

GIB = 2**30


@pytest.fixture(scope="module")
def tpu(benchmarks):
    return benchmarks("tpu_compile")


# The search.


@pytest.fixture(scope="module")
def case(tpu):
    return tpu.Case("pretraining", "training", "base", 128, "v5e")


@pytest.fixture
def answers(tpu, monkeypatch, tmp_path):
    """The answers of a compiler for which 2^n examples take n^2 GiB.

    Chips have the memory that they are sold with.
    """

    def compile_one(case, batch_size):
        asked.append((case.chip, case.kind, batch_size))
        exponent = batch_size.bit_length() - 1
        total, available = exponent**2 * GIB, tpu.MEMORY[case.chip]
        memory = {"arguments": total // 8, "temporaries": total - total // 4}
        memory |= {"outputs": 0, "program": total // 8}
        fits = total <= available
        return tpu.Trial(case, batch_size, memory if fits else None, available)

    asked = []
    monkeypatch.setattr(tpu, "compile_one", compile_one)
    monkeypatch.setattr(tpu, "PACKAGES", ("pytest",))
    found = tpu.Answers(str(tmp_path / "new" / "tpu.json"))
    found.asked = asked
    return found


def test_the_largest_batch_is_found(tpu, case, answers, monkeypatch):
    """v5e: from 64, which does not fit; v5p: from the memory of v5e."""
    assert answers.search(case) == 16
    assert [size for *_, size in answers.asked] == [64, 32, 16]
    answers.asked.clear()
    assert answers.search(case._replace(chip="v5p")) == 2**9
    assert [size for *_, size in answers.asked] == [64, 128, 256, 512, 1024]
    monkeypatch.setitem(tpu.MEMORY, "v6e", -1)
    assert answers.search(case._replace(chip="v6e", model="large")) == 0


def test_a_stopped_search_resumes(tpu, answers, monkeypatch):
    config = tpu.TpuConfig(
        output=answers._path,
        tasks=("tokens",),
        models=("base",),
        lengths=("128",),
        chips=("v5e", "v6e"),
    )
    found = tpu.run(config)
    everything = [*answers.asked]
    assert everything == [
        *(("v5e", "training", size) for size in (64, 32, 16)),
        ("v5e", "prediction", 16),
        ("v6e", "training", 32),
        ("v6e", "training", 64),
        ("v6e", "prediction", 32),
    ]
    text = tpu.section(found)
    for line in (
        "- pytest " + pytest.__version__ + "; bfloat16 activations, float32 "
        "weights",
        "- v5e: 16 GiB nominal, 16.00 usable by programs",
        "| model | length | v4 | v5e | v5p | v6e |",
        "| BERT-Base | 128 |  | 16 (100%) |  | 32 (78%) |",
    ):
        assert f"\n{line}\n" in f"\n{text}"
    kept = json.loads(pathlib.Path(config.output).read_text())
    kept["trials"] = kept["trials"][:2]
    tpu.comparison.write_json(config.output, kept)
    answers.asked.clear()
    assert tpu.run(config).trials == found.trials
    assert answers.asked == everything[2:]
    tpu.comparison.write_json(config.output, {"versions": {"pytest": "1.0"}})
    with pytest.raises(InputError, match=r"answers are of .*'1\.0'"):
        tpu.run(config)
    monkeypatch.setattr(tpu, "PACKAGES", ("no-such-package",))
    with pytest.raises(InputError, match="no-such-package is not installed"):
        tpu.run(config)


# The compiler.

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
TASKS = [
    *("pretraining", "packed_pretraining", "classification"),
    *("multiple_choice", "spans", "tokens"),
]


@pytest.fixture(scope="module")
def compiler(benchmarks):
    pytest.importorskip("libtpu")
    return benchmarks("tpu_steps")


@pytest.fixture
def steps(compiler):
    keras.config.set_dtype_policy("mixed_bfloat16")
    yield compiler
    keras.config.set_dtype_policy("float32")


# Options of the scripts, each with one task.
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
@pytest.mark.parametrize("task", TASKS)
def test_steps_of_the_scripts_compile(steps, task, kind):
    assert [*steps.TASKS] == TASKS
    step = steps.Step(
        *(task, kind, CONFIG, LENGTH, BATCH),
        settings=SETTINGS.get(task, {}),
        options=OPTIONS.get(task, {}),
    )
    text = step.lower(CHIPS)
    assert "stablehlo.all_reduce" in text
    memory = steps.compile_for("v5e", text, CHIPS)
    assert sum(memory.values()) > memory["arguments"] > 0
    if kind == "training":
        # Weights and moments are written where they were read.
        weights = 4 * 3 * CONFIG.hidden_size * CONFIG.vocab_size
        assert memory["outputs"] < weights < memory["arguments"]


# What a TPU cannot do.


class WithoutPadding:
    """A task that removes padding: the shapes depend on the batch."""

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
    with pytest.raises(ValueError, match=r"tensor<\?.* depends on the data"):
        step.lower(CHIPS)


def test_batches_of_several_lengths(steps, monkeypatch):
    """The batches for CPUs and GPUs."""
    padding = steps.batching.Padding()
    monkeypatch.setattr(steps.batching, "Padding", lambda static: padding)
    step = steps.Step("tokens", "prediction", CONFIG, LENGTH, BATCH)
    with pytest.raises(ValueError, match="is not known"):
        step.lower(CHIPS)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: tf.gather(x, tf.where(x[:, 0] > 0)[:, 0]), "depends on the"),
        (lambda x: tf.strings.length(tf.strings.as_string(x)), "AsString"),
        (lambda x: tf.numpy_function(abs, [x], tf.float32), "PyFunc"),
        (lambda x: tf.range(tf.cast(x[0, 0], tf.int32)), "compile-time const"),
    ],
    ids=["where", "strings", "python", "range"],
)
def test_unsupported_operations_are_errors(compiler, function, message):
    with pytest.raises(ValueError, match=message):
        compiler.lower(function, [tf.TensorSpec((3, 5))])


def test_memory_for_programs(compiler, tpu):
    for chip, memory in tpu.MEMORY.items():
        share = compiler.available_memory(chip) / memory
        assert 0.95 < share < 1.01


def test_dropout_uses_the_generator_of_a_tpu(compiler):
    """Philox would take a hundred times the memory of its result."""

    def draw(seed):
        return tf.random.stateless_uniform([1024, 1024], seed)

    text = compiler.lower(draw, [tf.TensorSpec((2,), tf.int32)])
    assert "PHILOX" in text
    memory = compiler.compile_for("v5e", text)
    assert memory["outputs"] == 4 * 1024**2
    assert memory["temporaries"] <= memory["outputs"]


def test_an_answer(steps, tpu, monkeypatch):
    arguments = "classification", "prediction", "L-1_H-128_A-2", 7, "v6e", 3
    found = steps.memory_of(*arguments)
    assert 0.95 < found["available"] / tpu.MEMORY["v6e"] < 1
    vocabulary = 4 * 30522 * 128
    assert vocabulary < found["memory"].pop("arguments") < 1.2 * vocabulary
    assert set(found["memory"]) == {"temporaries", "outputs", "program"}

    def refuse(*_):
        raise steps.OutOfMemoryError("RESOURCE_EXHAUSTED")

    monkeypatch.setattr(steps, "available_memory", lambda chip: 31)
    monkeypatch.setattr(steps, "compile_for", refuse)
    assert steps.memory_of(*arguments) == {"memory": None, "available": 31}
