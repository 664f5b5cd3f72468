"""Measures the padding and the time that --pack_sequences saves.

    python benchmarks/sequence_packing.py \\
        --wikitext=wiki.test.raw --vocab_file=bert-base-uncased-vocab.txt \\
        --page=docs/reports/performance.md

counts how full packed rows are, for records of 128 and 512 tokens of WikiText's
articles and of its sections. Then it runs training steps on packed rows and, in
turn, on the same examples in separate rows. It takes three minutes on two
cores.
"""

# Before anything that imports TensorFlow.
from bert_tf import start_tensorflow

start_tensorflow.quietly()

import dataclasses
import pathlib
import re
import shlex
import statistics
import sys
import tempfile
import time

import comparison
import sides
import tensorflow as tf

from bert_tf import BertConfig, cli
from bert_tf.base.options import option
from bert_tf.data import pipeline
from bert_tf.data.records import Schema, pretraining_schema
from bert_tf.data.sequence_packing import SequencePacking
from bert_tf.jobs import pretraining_data

sys.path.append(str(sides.PEERS))
from keras_training import make_step
from side import repeat

# Length of the records -> masked words: 15 %.
LENGTHS = {128: 20, 512: 77}
# The length of the steps.
LENGTH = 512
MODEL, VOCAB_SIZE = "L-6_H-384_A-6", 30522
# Rows of a batch of the pipeline, and batches.
PIPELINE_BATCH, PIPELINE_BATCHES = 32, 300


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequencePackingConfig(comparison.PageOptions):
    """Options of this benchmark."""

    wikitext: str = option("Raw file of WikiText.")
    vocab_file: str = option("Vocabulary file.")
    dupe_factor: int = option("Passes over the text.", default=5)
    batch_size: int = option("Rows of a step.", default=8)
    rounds: int = option("Number of rounds.", default=5, at_least=1)


def run(config: SequencePackingConfig) -> None:
    """Runs the benchmark."""
    fills = [
        [
            *("WikiText unit", "length", "examples", "one example per row"),
            *("packed", "examples per packed row"),
        ]
    ]
    paths = {}
    with tempfile.TemporaryDirectory() as folder:
        for of in ("sections", "articles"):
            for length in LENGTHS:
                path = make_records(config, pathlib.Path(folder), of, length)
                paths[of, length] = path
                fill = pipeline.fill([path], schema(length), SequencePacking())
                fills.append(
                    [
                        *(of, str(length), f"{fill.examples:,}"),
                        *(f"{fill.unpacked:.1%}", f"{fill.packed:.1%}"),
                        f"{fill.examples_per_row:.2f}",
                    ]
                )
        path = paths["sections", LENGTH]
        rates = [
            examples_per_second(path, packing)
            for packing in (SequencePacking(), None)
        ]
        rows, usages = measure_steps(config, path)
    text = section(config, fills, rows, usages, rates)
    comparison.publish(text, config.page, "packing")


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


def documents(path: pathlib.Path, of: str) -> list[list[str]]:
    """Returns the sentences of each article, or of each section.

    Headings of articles are "= Title =", of sections "= = Title = =". Documents
    of a single sentence are left out.
    """
    is_article = re.compile(r"= [^=].* =").fullmatch
    # WikiText has a blank before a full stop only at the end of a sentence.
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


def schema(length: int) -> Schema:
    return pretraining_schema(length, LENGTHS[length])


def examples_per_second(path: str, packing: SequencePacking | None) -> float:
    """Returns the examples that the pipeline produces per CPU-second."""
    batches = iter(
        pipeline.training_dataset(
            [path],
            schema(LENGTH),
            batch_size=PIPELINE_BATCH,
            seed=0,
            vocab_size=VOCAB_SIZE,
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


def batches_of_the_same(path: str, rows: int) -> tuple[dict, dict]:
    """Returns random packed rows, and their examples in separate rows."""
    features, packing = schema(LENGTH), SequencePacking()
    packed = packing.rows(
        tf.data.TFRecordDataset(path), pipeline.parser(features)
    )
    slots = next(iter(packed.shuffle(10_000, seed=1).batch(rows)))
    parse = pipeline.parser(features, VOCAB_SIZE)
    alone = parse(tf.boolean_mask(slots, tf.not_equal(slots, b"")))
    return packing.join(slots, parse), alone


def measure_steps(
    config: SequencePackingConfig, path: str
) -> tuple[list[int], list[list[dict[str, float]]]]:
    """Returns the rows of both batches, and the usage of their steps."""
    model = BertConfig.from_name(MODEL, VOCAB_SIZE)
    batches = batches_of_the_same(path, config.batch_size)
    steps = [make_step(model, batch) for batch in batches]
    for step in steps:
        step()
    usages = [[], []]
    for _ in range(config.rounds):
        for step, found in zip(steps, usages, strict=True):
            found.append(repeat(step, 0.0)[0])
    return [len(batch["input_ids"]) for batch in batches], usages


def section(
    config: SequencePackingConfig,
    fills: list[list[str]],
    rows: list[int],
    usages: list[list[dict[str, float]]],
    rates: list[float],
) -> str:
    """Returns the section of docs/reports/performance.md."""
    words = [word for word in sys.argv[1:] if not word.startswith("--page")]
    times, medians = [["", "rows", "CPU seconds", "wall-clock seconds"]], []
    names = ("packed", "one example per row")
    for name, count, side in zip(names, rows, usages, strict=True):
        cpu = [usage["cpu_seconds"] for usage in side]
        wall = [usage["seconds"] for usage in side]
        spreads = comparison.spread(cpu), comparison.spread(wall)
        times.append([name, str(count), *spreads])
        medians.append(statistics.median(cpu))
    return comparison.paragraphs(
        [
            "```sh",
            shlex.join(["python", "benchmarks/sequence_packing.py", *words]),
            "```",
        ],
        ["The share of a row's tokens that are not padding:"],
        comparison.table(fills),
        [
            f"One training step: {MODEL}, float32, {rows[1]} sections of at "
            f"most {LENGTH} tokens. The two variants ran alternately; medians "
            f"of {config.rounds} steps (smallest to largest):"
        ],
        comparison.table(times),
        [
            f"Packing needs {medians[0] / medians[1]:.0%} of the CPU time for "
            "the same examples. The input pipeline alone produces "
            f"{rates[0]:,.0f} packed or {rates[1]:,.0f} unpacked examples per "
            "CPU-second."
        ],
        [
            f"{sides.machine()}. CPU seconds are summed over all threads; "
            "other programs affect them less than wall-clock seconds."
        ],
    )


if __name__ == "__main__":
    cli.main(run)
