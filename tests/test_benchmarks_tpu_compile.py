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


def test_a_stopped_search_resumes(tpu, monkeypatch, tmp_path):
    """With a compiler for which 2^n examples take n^2 GiB."""

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
    config = tpu.TpuConfig(
        output=str(tmp_path / "new" / "tpu.json"),
        tasks=("tokens",),
        models=("base",),
        lengths=("128",),
        chips=("v5e", "v6e"),
    )
    found = tpu.run(config)
    everything = [*asked]
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
    asked.clear()
    assert tpu.run(config).trials == found.trials
    assert asked == everything[2:]


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
    return benchmarks("tpu_steps")


CLASSES = {"class_weights": (1.0, 2.0), "label_smoothing": 0.1}
# Each task with a setting of the training, or with options.
SETTINGS = {
    "pretraining": ({}, {}),
    "packed_pretraining": ({"gradient_accumulation_steps": 2}, {}),
    "classification": ({"adam_bias_correction": True}, CLASSES),
    "multiple_choice": ({"optimizer": "lamb"}, {}),
    "spans": ({}, {"gradient_checkpointing": True}),
    "tokens": ({}, {"frozen_layers": ("embeddings",)}),
}


@pytest.mark.parametrize("kind", ["training", "prediction"])
@pytest.mark.parametrize("task", SETTINGS)
def test_steps_of_the_scripts_compile(compiler, task, kind):
    assert [*compiler.TASKS] == [*SETTINGS]
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        text = compiler.Step(
            *(task, kind, CONFIG, LENGTH, BATCH), *SETTINGS[task]
        ).lower(CHIPS)
    finally:
        keras.config.set_dtype_policy("float32")
    assert "stablehlo.all_reduce" in text
    memory = compiler.compile_for("v5e", text, CHIPS)
    assert sum(memory.values()) > memory["arguments"] > 0
    if kind == "training":
        # Weights and moments are written where they were read.
        weights = 4 * 3 * CONFIG.hidden_size * CONFIG.vocab_size
        assert memory["outputs"] < weights < memory["arguments"]


def test_unsupported_operations_are_errors(compiler):
    for function, message in (
        (lambda x: tf.gather(x, tf.where(x[:, 0] > 0)[:, 0]), "depends on the"),
        (lambda x: tf.strings.length(tf.strings.as_string(x)), "AsString"),
    ):
        with pytest.raises(ValueError, match=message):
            compiler.lower(function, [tf.TensorSpec((3, 5))])
