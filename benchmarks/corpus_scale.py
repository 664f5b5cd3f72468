"""Memory and time of data creation for growing texts.

    python benchmarks/corpus_scale.py --picture=build/corpus_scale.png

runs create_pretraining_data.py on texts of 5, 15 and 50 MB; it takes about
three minutes. The texts are generated: 20,000 words of one to four syllables
with frequencies 1 / rank, sentences of 5 to 30 words, documents of 1 to several
hundred sentences. Time is the CPU time of all processes, which other programs
disturb less; memory is sampled for all processes together.
"""

import dataclasses
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import comparison
import numpy as np
import sides

from bert_tf import cli
from bert_tf.base import files, processes
from bert_tf.base.options import option
from bert_tf.jobs import vocabulary

SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
NUM_WORDS = 20_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusScaleConfig(comparison.PageOptions):
    """Options of this benchmark."""

    megabytes: tuple[str, ...] = option(
        "Sizes of the texts.", default=("5", "15", "50")
    )
    dupe_factor: int = option("Passes over the text.", default=10)
    num_workers: int = option(
        "Number of processes.", default=processes.available_cpus()
    )
    vocab_size: int = option(
        "Size of the vocabulary, learned from the first text.", default=8000
    )
    picture: str | None = option("PNG file of a plot.", default=None)


class Row(NamedTuple):
    """A text, and the time and memory of data creation."""

    megabytes: float
    documents: int
    instances: int
    mebibytes: float
    cpu_seconds: float


def run(config: CorpusScaleConfig) -> list[Row]:
    """Runs the benchmark."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            measure(config, pathlib.Path(folder), float(size))
            for size in config.megabytes
        ]
    if config.picture:
        draw(rows, config.picture)
    comparison.publish(section(config, rows), config.page, "corpus")
    return rows


def measure(
    config: CorpusScaleConfig, folder: pathlib.Path, megabytes: float
) -> Row:
    """Makes a text and its records."""
    text, vocab = folder / "text.txt", folder / "vocab.txt"
    write_text(text, int(megabytes * 1e6))
    if not vocab.exists():
        vocabulary.run(
            vocabulary.VocabularyConfig(
                input_file=text,
                output_file=vocab,
                vocab_size=config.vocab_size,
            )
        )
    command = [
        sys.executable,
        str(sides.ROOT / "create_pretraining_data.py"),
        f"--input_file={text}",
        f"--output_file={folder}/out.tfrecord",
        f"--vocab_file={vocab}",
        f"--dupe_factor={config.dupe_factor}",
        f"--num_workers={config.num_workers}",
    ]
    usage = sides.run_command(command, folder)
    manifest = files.read_json(str(folder / "manifest.out.tfrecord.json"))
    row = Row(
        text.stat().st_size / 1e6,
        manifest["counts"]["documents"],
        manifest["counts"]["instances"],
        usage["peak_bytes"] / comparison.MIB,
        usage["cpu_seconds"],
    )
    print(row, file=sys.stderr)
    return row


def documents() -> Iterator[str]:
    """Yields documents without end, each followed by a blank line."""
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 5, NUM_WORDS)
    words = np.array(["".join(rng.choice(SYLLABLES, n)) for n in counts])
    weights = 1 / np.arange(1, NUM_WORDS + 1)
    weights /= weights.sum()
    while True:
        lengths = rng.integers(5, 31, 1 + int(rng.lognormal(2.5, 1.0)))
        chosen = words[rng.choice(NUM_WORDS, lengths.sum(), p=weights)]
        sentences = np.split(chosen, np.cumsum(lengths)[:-1])
        yield "\n".join(map(" ".join, sentences)) + "\n\n"


def write_text(path: pathlib.Path, size: int) -> None:
    """Writes whole documents of `size` bytes or slightly more."""
    with path.open("w") as file:
        for document in documents():
            file.write(document)
            if file.tell() >= size:
                return


def section(config: CorpusScaleConfig, rows: Sequence[Row]) -> str:
    """Returns the results in Markdown."""
    titles = ["text", "documents", "examples", "memory", "CPU time"]
    cells = (
        [
            f"{row.megabytes:,.0f} MB",
            f"{row.documents:,}",
            f"{row.instances:,}",
            f"{row.mebibytes:,.0f} MiB",
            f"{row.cpu_seconds:,.1f} s",
        ]
        for row in rows
    )
    first, last = rows[0], rows[-1]
    picture = []
    if config.page and config.picture:
        path = os.path.relpath(config.picture, os.path.dirname(config.page))
        picture = [[f"![Memory and time against the size of the text]({path})"]]
    return comparison.paragraphs(
        [
            "`create_pretraining_data.py` on generated texts with "
            f"`--dupe_factor={config.dupe_factor}`",
            f"and {config.num_workers} workers; memory is the sum over all "
            "processes.",
        ],
        comparison.table([titles, *cells]),
        [
            f"{last.megabytes / first.megabytes:.0f} times the text takes "
            f"{last.mebibytes / first.mebibytes:.2f} times the memory and "
            f"{last.cpu_seconds / first.cpu_seconds:.1f} times the CPU time."
        ],
        *picture,
        [f"({sides.processor()}; by `benchmarks/corpus_scale.py`.)"],
    )


def draw(rows: Sequence[Row], path: str) -> None:
    """Plots memory and time against the size of the text."""
    from matplotlib.figure import Figure  # Optional.

    panels = {
        "memory of all processes, MiB": [row.mebibytes for row in rows],
        "CPU time of all processes, s": [row.cpu_seconds for row in rows],
    }
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    all_axes = figure.subplots(1, 2)
    for axes, (title, values) in zip(all_axes, panels.items(), strict=True):
        axes.plot([row.megabytes for row in rows], values, marker="o")
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("text, MB")
        axes.set_xlim(0)
        axes.set_ylim(0, 1.15 * max(values))
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    cli.main(run)
