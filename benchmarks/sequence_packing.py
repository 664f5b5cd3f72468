"""What --pack_sequences saves: padding, and time for the same examples.

    python benchmarks/sequence_packing.py \\
        --wikitext=wiki.test.raw --vocab_file=bert-base-uncased-vocab.txt \\
        --page=docs/scale.md

makes records of 128 and 512 tokens of WikiText, once with its articles as
documents and once with its sections, and counts how full rows of them are. Then
it runs training steps on rows of 512 and, in turn, on the same examples in a
row each. It takes three minutes on two cores, prints the section "packing" of
the page and writes it there.

Times are CPU seconds of this process, all its threads, so that other programs
disturb them less than a clock's.
"""

# Before anything that imports TensorFlow.
import bert_tf.quiet_tensorflow  # noqa: F401

# isort: split
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pretraining_step
import tensorflow as tf
import wikitext
from absl import app, flags
from measured import machine
from pages import table, write_section
from places import ROOT
from timed import Spread

from bert_tf import cli
from bert_tf.config import BertConfig
from bert_tf.data import pipeline
from bert_tf.data.schema import Schema, pretraining_schema
from bert_tf.data.sequence_packing import Fill, SequencePacking
from bert_tf.jobs import settings
from bert_tf.jobs.settings import DeviceOptions

FLAGS = flags.FLAGS

flags.DEFINE_string("wikitext", None, "A file of WikiText, raw.", required=True)
flags.DEFINE_string("vocab_file", None, "Its vocabulary.", required=True)
flags.DEFINE_string("page", None, "Page to write to, beside printing.")
flags.DEFINE_integer("dupe_factor", 5, "Passes over the text.")
flags.DEFINE_integer("hidden_size", 384, "Width of the model; heads are 64.")
flags.DEFINE_integer("num_hidden_layers", 6, "Blocks of the model.")
flags.DEFINE_integer("vocab_size", 30522, "Pieces in the vocabulary.")
flags.DEFINE_integer("batch_size", 8, "Rows of a step.")
flags.DEFINE_integer("max_seq_length", 512, "Positions of a row.")
flags.DEFINE_integer("rounds", 5, "Measurements; their median is printed.")
cli.define_flags(DeviceOptions)

# Length of the records -> their masked words: 15 %.
LENGTHS = {128: 20, 512: 77}
DOCUMENTS = {"sections": wikitext.sections, "articles": wikitext.articles}
# Rows of a parse, or of a batch of the pipeline.
PIPELINE_BATCH = 32
PIPELINE_BATCHES = 300


class Times(NamedTuple):
    """CPU seconds of a step, and with how many examples."""

    rows: int
    examples: int
    packed: Spread
    plain: Spread
    packed_clock: Spread
    plain_clock: Spread


def main(argv) -> None:
    del argv
    settings.connect(cli.read_config(DeviceOptions))
    with tempfile.TemporaryDirectory() as folder:
        files = {
            (name, length): make_records(pathlib.Path(folder), name, length)
            for name in DOCUMENTS
            for length in LENGTHS
        }
        fills = {
            key: pipeline.fill([file], schema(key[1]), SequencePacking())
            for key, file in files.items()
        }
        file = files["sections", FLAGS.max_seq_length]
        rates = {
            name: examples_per_second(file, packing)
            for name, packing in (
                ("packed", SequencePacking()),
                ("plain", None),
            )
        }
        times = step_times(file)
    text = "\n".join(section(fills, times, rates))
    print(text)
    if FLAGS.page:
        write_section(FLAGS.page, "packing", text)


def schema(length: int) -> Schema:
    return pretraining_schema(length, LENGTHS[length])


def make_records(folder: pathlib.Path, name: str, length: int) -> str:
    """Runs create_pretraining_data.py; returns the file that it wrote."""
    text = folder / f"{name}.txt"
    wikitext.write(DOCUMENTS[name](pathlib.Path(FLAGS.wikitext)), text)
    output = folder / f"{name}.{length}.tfrecord"
    subprocess.run(
        [
            sys.executable,
            str(ROOT / "create_pretraining_data.py"),
            f"--input_file={text}",
            f"--output_file={output}",
            f"--vocab_file={FLAGS.vocab_file}",
            f"--max_seq_length={length}",
            f"--max_predictions_per_seq={LENGTHS[length]}",
            f"--dupe_factor={FLAGS.dupe_factor}",
        ],
        check=True,
        capture_output=True,
    )
    return str(output)


def examples_per_second(file: str, packing: SequencePacking | None) -> float:
    """Examples that the training pipeline makes in a CPU second."""
    batches = iter(
        pipeline.training_dataset(
            [file],
            schema(FLAGS.max_seq_length),
            batch_size=PIPELINE_BATCH,
            seed=0,
            vocab_size=FLAGS.vocab_size,
            packing=packing,
        )
    )
    next(batches)
    started, examples = time.process_time(), 0.0
    for _ in range(PIPELINE_BATCHES):
        labels = next(batches)
        weights = labels.get("next_sentence_weights")
        examples += (
            PIPELINE_BATCH if weights is None else float(tf.reduce_sum(weights))
        )
    return examples / (time.process_time() - started)


def batches_of_the_same(file: str) -> tuple[dict, dict]:
    """Rows at random, and the examples in them in a row each."""
    features = schema(FLAGS.max_seq_length)
    packing = SequencePacking()
    rows = packing.rows(
        tf.data.TFRecordDataset(file),
        pipeline.parser(features),
    )
    slots = next(iter(rows.shuffle(10_000, seed=1).batch(FLAGS.batch_size)))
    parse = pipeline.parser(features, FLAGS.vocab_size)
    return packing.join(slots, parse), parse(
        tf.boolean_mask(slots, tf.not_equal(slots, b""))
    )


def step_times(file: str) -> Times:
    """Runs steps in turn."""
    config = BertConfig(
        FLAGS.vocab_size,
        hidden_size=FLAGS.hidden_size,
        num_hidden_layers=FLAGS.num_hidden_layers,
        num_attention_heads=FLAGS.hidden_size // 64,
        intermediate_size=4 * FLAGS.hidden_size,
        type_vocab_size=2,
    )
    compiled = settings.jit_compile(cli.read_config(DeviceOptions))
    batches = batches_of_the_same(file)
    runs = [pretraining_step.make(config, b, compiled) for b in batches]
    for run_step in runs:
        run_step()
    rounds = [
        [measure(run_step) for run_step in runs] for _ in range(FLAGS.rounds)
    ]
    (packed, packed_clock), (plain, plain_clock) = (
        map(Spread.of, zip(*side, strict=True))
        for side in zip(*rounds, strict=True)
    )
    rows, examples = (len(b["input_ids"]) for b in batches)
    return Times(rows, examples, packed, plain, packed_clock, plain_clock)


def measure(run_step: Callable[[], object]) -> tuple[float, float]:
    """CPU and clock seconds of a call."""
    clock, cpu = time.perf_counter(), time.process_time()
    run_step()
    return time.process_time() - cpu, time.perf_counter() - clock


def section(
    fills: dict[tuple[str, int], Fill], times: Times, rates: dict[str, float]
) -> Iterator[str]:
    """Everything that was measured, in Markdown."""
    yield from ("```", command(), "```", "")
    yield "How full rows are: the share of their places that is no padding."
    yield ""
    yield from table(fill_rows(fills))
    yield ""
    yield (
        f"A training step of {FLAGS.num_hidden_layers} layers of "
        f"{FLAGS.hidden_size}, {FLAGS.mixed_precision}, on {times.examples} "
        f"examples of sections at {FLAGS.max_seq_length}: medians of "
        f"{FLAGS.rounds} steps in turn (least to most)."
    )
    yield ""
    yield from table(time_rows(times))
    yield ""
    yield (
        f"Packing takes {times.packed.median / times.plain.median:.2f} of the "
        "CPU time for the same examples. The input pipeline, alone, makes "
        f"{rates['packed']:,.0f} examples in a CPU second packed and "
        f"{rates['plain']:,.0f} unpacked."
    )
    yield ""
    facts = machine()
    yield (
        f"{facts['processor']}, {facts['cores']} cores, {facts['system']}. CPU "
        "seconds are those of all threads: of what else a machine does they "
        "show less than the clock."
    )


def command() -> str:
    """How to do it again."""
    return " \\\n    ".join(
        [
            "python benchmarks/sequence_packing.py",
            *(word for word in sys.argv[1:] if not word.startswith("--page")),
        ]
    )


def fill_rows(fills: dict[tuple[str, int], Fill]) -> Iterator[list[str]]:
    yield [
        "WikiText's",
        "length",
        "examples",
        "a row each",
        "packed",
        "examples a row",
    ]
    for (name, length), fill in fills.items():
        yield [
            name,
            str(length),
            f"{fill.examples:,}",
            f"{fill.unpacked:.1%}",
            f"{fill.packed:.1%}",
            f"{fill.examples_per_row:.2f}",
        ]


def time_rows(times: Times) -> Iterator[list[str]]:
    yield ["", "rows", "CPU seconds", "seconds by the clock"]
    for name, rows, cpu, clock in (
        ("packed", times.rows, times.packed, times.packed_clock),
        ("a row each", times.examples, times.plain, times.plain_clock),
    ):
        yield [name, str(rows), show(cpu), show(clock)]


def show(spread: Spread) -> str:
    return f"{spread.median:.2f} ({spread.low:.2f} to {spread.high:.2f})"


if __name__ == "__main__":
    app.run(main)
