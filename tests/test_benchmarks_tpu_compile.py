"""The largest batch of TPUs: its search, its page, and the compiler.

The tests of the compiler need jax and libtpu, which `make test-tf220` has.
"""

import json

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


def answer(tpu, case, size, total, available):
    """What the compiler says; most of it grows with the batch."""
    memory = total <= available and {
        "arguments": total // 8,
        "temporaries": total - total // 4,
        "outputs": 0,
        "program": total // 8,
    }
    return tpu.Trial(case, size, memory or None, available, 60.0)


def search(tpu, case, total_of, available, known=()):
    """Returns all batches that are tried, in turn, and the results."""
    results = tpu.Results({"jax": "0.10.2"}, 4, list(known))
    results.available = lambda chip: available
    sizes = []
    while size := results.next_batch_size(case):
        assert size not in sizes
        assert len(sizes) < 20
        sizes.append(size)
        total = total_of(size)
        results.trials.append(answer(tpu, case, size, total, available))
    return sizes, results


def steady(size):
    return 89 + 11 * size


@pytest.mark.parametrize("available", [101, 113, 997, 5003, 70001])
def test_the_largest_that_fits(tpu, case, available):
    sizes, results = search(tpu, case, steady, available)
    largest = results.largest(case).batch_size
    assert steady(largest) <= available < steady(2 * largest)
    assert 2 * largest in sizes
    assert len(sizes) <= 9


def test_the_line_hits(tpu, case):
    """At most two programs more than those that decide."""
    for fits in (128, 512, 2048):
        sizes, _ = search(tpu, case, steady, steady(fits) + 1)
        assert len(sizes) <= 4
        assert sizes[-2:] in ([fits, 2 * fits], [2 * fits, fits])


@pytest.mark.parametrize(
    "total_of",
    [
        lambda size: size**2,
        lambda size: int(10 * size**0.5),
        # A compiler computes some things twice rather than give up.
        lambda size: min(9 * size, 900) if size <= 128 else 10**6,
        lambda size: 7 if size <= 4096 else 10**6,
        lambda size: size if size <= 2 else 10**6,
    ],
    ids=["square", "root", "recomputed", "flat", "small"],
)
def test_memory_may_grow_in_another_way(tpu, case, total_of):
    _, results = search(tpu, case, total_of, 1000)
    largest = results.largest(case).batch_size
    assert total_of(largest) <= 1000 < total_of(2 * largest)


def test_nothing_fits(tpu, case):
    sizes, results = search(tpu, case, lambda size: 1000 + size, 100)
    assert sizes == [64, 32, 16, 8, 4, 2, 1]
    assert results.largest(case) is None


def test_a_similar_step_says_where_to_begin(tpu, case):
    _, known = search(tpu, case, steady, 1000)
    other = case._replace(chip="v4")
    sizes, _ = search(
        tpu, other, lambda size: 90 + 11 * size, 2000, known.trials
    )
    assert sizes == [128, 256]
    assert known.next_batch_size(case._replace(max_seq_length=512)) == 16


@pytest.fixture
def results(tpu, case):
    """All is known of BERT-Base 128 on v5e; on v6e 32 fit."""
    prediction = case._replace(kind="prediction")
    other, far = case._replace(chip="v6e"), case._replace(chip="v5p")
    return tpu.Results(
        {"jax": "0.10.2", "libtpu": "0.0.52"},
        4,
        [
            answer(tpu, of, size, total * GIB, int(chip * GIB))
            for of, size, total, chip in (
                (case, 64, 5, 15.75),
                (case, 128, 9, 15.75),
                (case, 256, 17, 15.75),
                (prediction, 128, 1, 15.75),
                (far, 1024, 65, 95.75),
                (other, 32, 3, 31.25),
            )
        ],
    )


def test_a_file_and_what_the_compiler_has(tpu, results, tmp_path):
    path = str(tmp_path / "new" / "tpu.json")
    results.write(path)
    assert tpu.Results.read(path) == results
    assert results.available("v5e") == 15.75 * GIB
    assert results.available("v4") == 32 * GIB


def test_the_section(tpu, results):
    text = tpu.section(results)
    for line in (
        "- jax 0.10.2, libtpu 0.0.52; bfloat16 activations, float32 weights",
        "- v5e: 16 GiB, of which programs can use 15.75",
        "| model | length | v4 | v5e | v5p | v6e |",
        "| BERT-Base | 128 | (256) | 128 | 1024+ | 32+ |",
        "| v5e | BERT-Base | 128 | pretraining | training | 128 | 1.12 | 6.75 "
        "| 1.12 | 9.00 | 57% |",
        "| v5e | BERT-Base | 128 | pretraining | prediction | 128 | 0.12 | "
        "0.75 | 0.12 | 1.00 | 6% |",
        "| v5e | BERT-Base | 128 | pretraining | training | 256 |  |  |  | "
        "refused |  |",
        "| BERT-Large | 512 | (?) | (?) | (?) | (?) |",
    ):
        assert f"\n{line}\n" in text
    missing = ": classification (prediction), classification (training)\n"
    assert missing in text
    assert "\n\n\n" not in text


def test_a_step_that_does_not_fit(tpu):
    case = tpu.Case("spans", "training", "large", 512, "v5e")
    trial = tpu.Trial(case, 1, None, 16 * GIB, 7.4)
    text = tpu.section(tpu.Results({}, 1, [trial]))
    assert "| BERT-Large | 512 | (?) | 0 | (?) | (?) |" in text
    assert tpu.line(trial) == (
        "v5e, BERT-Large, spans, training, 1 x 512: does not fit (7 s of CPU)"
    )


def test_a_stopped_search_goes_on(tpu, monkeypatch, tmp_path, capsys):
    """An example takes a third of a GiB."""
    asked = []

    def compile_one(case, batch_size, chips):
        asked.append((case.chip, case.kind, batch_size))
        available = {"v5e": 16 * GIB, "v6e": 31 * GIB}[case.chip]
        return answer(tpu, case, batch_size, batch_size * GIB // 3, available)

    monkeypatch.setattr(tpu, "compile_one", compile_one)
    monkeypatch.setattr(tpu, "PACKAGES", ("pytest",))
    config = tpu.TpuConfig(
        output=str(tmp_path / "tpu.json"),
        **{"tasks": ["tokens"], "models": ["base"], "lengths": ["128"]},
        chips=("v5e", "v6e"),
    )
    results = tpu.run(config)
    everything = [*asked]
    assert everything == [
        ("v5e", "training", 64),
        ("v5e", "training", 32),
        ("v6e", "training", 64),
        ("v6e", "training", 128),
        ("v5e", "prediction", 32),
        ("v6e", "prediction", 64),
    ]
    del results.trials[2:]
    results.write(config.output)
    asked.clear()
    tpu.run(config)
    assert asked == everything[2:]
    asked.clear()
    tpu.run(config)
    assert not asked
    tpu.Results({"pytest": "1.0"}, 4).write(config.output)
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


@pytest.fixture(scope="module")
def compiler(benchmarks):
    pytest.importorskip("libtpu")
    return benchmarks("tpu_program")


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
def test_steps_of_the_scripts_compile(steps, task, kind):
    step = steps.Step(
        *(task, kind, CONFIG, LENGTH, BATCH),
        settings=SETTINGS.get(task, {}),
        options=OPTIONS.get(task, {}),
    )
    text = step.lower(CHIPS)
    assert "stablehlo.all_reduce" in text
    memory = steps.compile_for("v5e", text, CHIPS)
    assert sum(memory) > memory.arguments > 0
    if kind == "training":
        # Weights and moments are written where they were read.
        weights = 4 * 3 * CONFIG.hidden_size * CONFIG.vocab_size
        assert memory.outputs < weights < memory.arguments


def test_all_tasks_are_tried(steps, tpu):
    assert [*steps.TASKS] == [*tpu.TITLES]
    (marks,) = (
        mark
        for mark in test_steps_of_the_scripts_compile.pytestmark
        if mark.args[0] == "task"
    )
    assert marks.args[1] == list(steps.TASKS)


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
    padding = steps.buckets.Padding()
    monkeypatch.setattr(steps.buckets, "Padding", lambda static: padding)
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
def test_what_xla_cannot_lower(compiler, function, message):
    with pytest.raises(ValueError, match=message):
        compiler.lower(function, [tf.TensorSpec((3, 5))])


def test_unknown_shapes(compiler):
    with pytest.raises(ValueError, match=r"TensorSpec.*None, 5.* not known"):
        compiler.lower(tf.abs, [tf.TensorSpec((None, 5))])


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
    assert memory.outputs == 4 * 1024**2
    assert memory.temporaries <= memory.outputs


# The program.


@pytest.fixture
def config(steps):
    return steps.ProgramConfig(
        task="classification",
        kind="prediction",
        model="L-1_H-128_A-2",
        max_seq_length=7,
        batch_size=3,
        chip="v6e",
    )


def test_an_answer(compiler, config, tpu, capsys):
    compiler.run(config)
    found = json.loads(capsys.readouterr().out)
    assert 0.95 < found["available"] / tpu.MEMORY["v6e"] < 1
    vocabulary = 4 * 30522 * 128
    assert vocabulary < found["memory"].pop("arguments") < 1.2 * vocabulary
    assert set(found["memory"]) == {"temporaries", "outputs", "program"}


def test_too_much(compiler, config, monkeypatch, capsys):
    def refuse(*_):
        raise compiler.OutOfMemoryError("RESOURCE_EXHAUSTED")

    monkeypatch.setattr(compiler, "available_memory", lambda chip: 31)
    monkeypatch.setattr(compiler, "compile_for", refuse)
    compiler.run(config)
    found = json.loads(capsys.readouterr().out)
    assert found == {"memory": None, "available": 31}
