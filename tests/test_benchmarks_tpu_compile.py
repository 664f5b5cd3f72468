"""The largest batch of TPUs: its search, its page, and the compiler.

The tests of the compiler need jax and libtpu, which `make test-tf220` has.
"""

import json
import pathlib

import keras
import pytest
import tensorflow as tf

from bert_tf import BertConfig

GIB = 2**30


@pytest.fixture(scope="module")
def tpu(benchmarks):
    return benchmarks("tpu_compile")


# The search.


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
    assert "\n| BERT-Base | 128 |  | 16 (100%) |  | 32 (78%) |\n" in text
    kept = json.loads(pathlib.Path(config.output).read_text())
    kept["trials"] = kept["trials"][:2]
    tpu.comparison.write_json(config.output, kept)
    answers.asked.clear()
    assert tpu.run(config).trials == found.trials
    assert answers.asked == everything[2:]


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
