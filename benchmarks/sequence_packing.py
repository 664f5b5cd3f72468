"""The padding and the time that --pack_sequences saves.

    python benchmarks/sequence_packing.py \\
        --wikitext=wiki.test.raw --vocab_file=bert-base-uncased-vocab.txt \\
        --page=docs/scale.md

creates records of 128 and 512 tokens from WikiText, with its articles and with
its sections as documents, and counts how full packed rows are. Then it runs
training steps on packed rows of 512 and, in turn, on the same examples in a row
each. It takes three minutes on two cores. Times are CPU seconds of all threads,
which other programs disturb less than wall-clock time.
"""

# Before anything that imports TensorFlow.
import bert_tf.quiet_tensorflow  # noqa: F401

# isort: split
import dataclasses
import pathlib
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import tensorflow as tf
from comparison import machine, paragraphs, publish, spread, table
from sides import PEERS

from bert_tf import BertConfig, cli
from bert_tf.data import pipeline
from bert_tf.data.schema import Schema, pretraining_schema
from bert_tf.data.sequence_packing import Fill, SequencePacking
from bert_tf.jobs import pretraining_data, settings
from bert_tf.jobs.settings import DeviceOptions
from bert_tf.options import option

sys.path.append(str(PEERS))
from bert_tf_training import make_step

# Length of the records -> masked words: 15 %.
LENGTHS = {128: 20, 512: 77}
# Rows of a batch of the pipeline, and batches.
PIPELINE_BATCH, PIPELINE_BATCHES = 32, 300


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequencePackingConfig(DeviceOptions):
    """Options of this benchmark."""

    wikitext: str = option("Raw file of WikiText.")
    vocab_file: str = option("Vocabulary file.")
    page: str | None = option(
        "Markdown page whose section is replaced.", default=None
    )
    dupe_factor: int = option("Passes over the text.", default=5)
    hidden_size: int = option("Width; heads have 64.", default=384)
    num_hidden_layers: int = option("Number of layers.", default=6)
    vocab_size: int = option("Size of the vocabulary.", default=30522)
    batch_size: int = option("Rows of a step.", default=8)
    max_seq_length: int = option("Length of a row: 128 or 512.", default=512)
    rounds: int = option("Number of rounds.", default=5, at_least=1)


# WikiText.


def documents(path: pathlib.Path, of: str) -> list[list[str]]:
    """Returns the sentences of each article, or of each section.

    Headings of articles are "= Title =", of sections "= = Title = =". Documents
    of a single sentence are left out.
    """
    is_article = re.compile(r"= [^=].* =").fullmatch
    # Tokens are separated by blanks, so only the end of a sentence looks so.
    end_of_sentence = re.compile(r"(?<= [.!?]) ")
    found, sentences = [], []
    for line in map(str.strip, path.open(encoding="utf-8")):
        is_heading = line.startswith("= ")
        if is_article(line) or (is_heading and of == "sections"):
            found.append(sentences)
            sentences = []
        elif line and not is_heading:
            sentences += end_of_sentence.split(line)
    found.append(sentences)
    return [sentences for sentences in found if len(sentences) > 1]


def make_records(
    config: SequencePackingConfig, folder: pathlib.Path, of: str, length: int
) -> str:
    """Creates records of WikiText; returns the path of the file."""
    text = folder / f"{of}.txt"
    parts = map("\n".join, documents(pathlib.Path(config.wikitext), of))
    text.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    [path] = pretraining_data.run(
        pretraining_data.PretrainingDataConfig(
            input_file=text,
            output_file=folder / f"{of}.{length}.tfrecord",
            vocab_file=config.vocab_file,
            max_seq_length=length,
            max_predictions_per_seq=LENGTHS[length],
            dupe_factor=config.dupe_factor,
        )
    )
    return path


# The measurements.


def run(config: SequencePackingConfig) -> None:
    """Runs the benchmark."""
    settings.connect(config)
    with tempfile.TemporaryDirectory() as name:
        paths = {
            (of, length): make_records(config, pathlib.Path(name), of, length)
            for of in ("sections", "articles")
            for length in LENGTHS
        }
        fills = {
            key: pipeline.fill([path], schema(key[1]), SequencePacking())
            for key, path in paths.items()
        }
        path = paths["sections", config.max_seq_length]
        rates = [
            examples_per_second(config, path, packing)
            for packing in (SequencePacking(), None)
        ]
        rows, times = step_times(config, path)
    publish(section(config, fills, rows, times, rates), config.page, "packing")


def schema(length: int) -> Schema:
    return pretraining_schema(length, LENGTHS[length])


def examples_per_second(
    config: SequencePackingConfig, path: str, packing: SequencePacking | None
) -> float:
    """Returns the examples that the pipeline makes in a CPU second."""
    batches = iter(
        pipeline.training_dataset(
            [path],
            schema(config.max_seq_length),
            batch_size=PIPELINE_BATCH,
            seed=0,
            vocab_size=config.vocab_size,
            packing=packing,
        )
    )
    next(batches)
    start, examples = time.process_time(), 0.0
    for _ in range(PIPELINE_BATCHES):
        weights = next(batches).get("next_sentence_weights")
        examples += (
            PIPELINE_BATCH if weights is None else float(tf.reduce_sum(weights))
        )
    return examples / (time.process_time() - start)


def batches_of_the_same(
    config: SequencePackingConfig, path: str
) -> tuple[dict, dict]:
    """Returns random packed rows, and their examples in a row each."""
    features, packing = schema(config.max_seq_length), SequencePacking()
    rows = packing.rows(
        tf.data.TFRecordDataset(path), pipeline.parser(features)
    )
    slots = next(iter(rows.shuffle(10_000, seed=1).batch(config.batch_size)))
    parse = pipeline.parser(features, config.vocab_size)
    alone = parse(tf.boolean_mask(slots, tf.not_equal(slots, b"")))
    return packing.join(slots, parse), alone


def step_times(
    config: SequencePackingConfig, path: str
) -> tuple[list[int], list[list[tuple[float, float]]]]:
    """Returns the rows of both batches, and CPU and wall seconds of steps."""
    heads = config.hidden_size // 64
    size = f"L-{config.num_hidden_layers}_H-{config.hidden_size}_A-{heads}"
    model = BertConfig.from_name(size, config.vocab_size)
    batches = batches_of_the_same(config, path)
    compiled = settings.jit_compile(config)
    steps = [make_step(model, batch, compiled) for batch in batches]
    for step in steps:
        step()
    rounds = [[measure(step) for step in steps] for _ in range(config.rounds)]
    rows = [len(batch["input_ids"]) for batch in batches]
    return rows, [list(side) for side in zip(*rounds, strict=True)]


def measure(step: Callable[[], object]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    step()
    return time.process_time() - cpu, time.perf_counter() - wall


# The section.


def section(
    config: SequencePackingConfig,
    fills: dict[tuple[str, int], Fill],
    rows: list[int],
    times: list[list[tuple[float, float]]],
    rates: list[float],
) -> str:
    words = [word for word in sys.argv[1:] if not word.startswith("--page")]
    medians = [sorted(cpu for cpu, _ in side)[len(side) // 2] for side in times]
    packed, unpacked = rates
    return paragraphs(
        [
            "```sh",
            " \\\n    ".join(["python benchmarks/sequence_packing.py", *words]),
            "```",
        ],
        ["How full rows are: the share of their tokens that is not padding."],
        table(_fill_rows(fills)),
        [
            f"A training step of {config.num_hidden_layers} layers of "
            f"{config.hidden_size}, {config.mixed_precision}, on {rows[1]} "
            f"examples of sections at {config.max_seq_length}: medians of "
            f"{config.rounds} steps in turn (least to most)."
        ],
        table(_time_rows(rows, times)),
        [
            f"Packing takes {medians[0] / medians[1]:.2f} of the CPU time for "
            "the same examples. The input pipeline alone makes "
            f"{packed:,.0f} examples in a CPU second packed and "
            f"{unpacked:,.0f} unpacked."
        ],
        [f"{machine()}. CPU seconds are those of all threads."],
    )


def _fill_rows(fills: dict[tuple[str, int], Fill]) -> Iterator[list[str]]:
    yield [
        *("WikiText's", "length", "examples"),
        *("a row each", "packed", "examples a row"),
    ]
    for (of, length), fill in fills.items():
        yield [
            of,
            str(length),
            f"{fill.examples:,}",
            f"{fill.unpacked:.1%}",
            f"{fill.packed:.1%}",
            f"{fill.examples_per_row:.2f}",
        ]


def _time_rows(
    rows: list[int], times: list[list[tuple[float, float]]]
) -> Iterator[list[str]]:
    yield ["", "rows", "CPU seconds", "wall-clock seconds"]
    for name, count, side in zip(
        ("packed", "a row each"), rows, times, strict=True
    ):
        cells = (spread(values) for values in zip(*side, strict=True))
        yield [name, str(count), *cells]


if __name__ == "__main__":
    cli.main(run)
