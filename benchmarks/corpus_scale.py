"""How memory and time of data creation grow with the corpus.

    python benchmarks/corpus_scale.py --page=docs/scale.md \\
        --picture=docs/corpus_scale.png

writes texts of 5, 15 and 50 MB, runs create_pretraining_data.py on each, and
holds ten times the text against the first: not more than 1.2 times the memory
and ten times the CPU time. It prints the section "corpus" of the page and
writes it there, with a picture. It takes some three minutes. Other sizes are
for `--megabytes=100,1000`.

The texts are made up: 20,000 words of one to four syllables, each half as
frequent where its rank is twice as high, sentences of 5 to 30 words, documents
of 1 to some hundred sentences. Time is CPU time of all processes, which other
programs disturb less than a clock's; memory is that of all processes together,
sampled 20 times a second.
"""

import json
import pathlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import sessions
from absl import app, flags
from measured import BYTES_PER_MIB, machine
from pages import table, write_section
from places import ROOT

from bert_tf.data import processes

FLAGS = flags.FLAGS

flags.DEFINE_list("megabytes", ["5", "15", "50"], "Sizes of the texts.")
flags.DEFINE_integer("dupe_factor", 10, "Passes over the text.")
flags.DEFINE_integer("num_workers", processes.available_cpus(), "Processes.")
flags.DEFINE_integer("vocab_size", 8000, "Learned from the first text.")
flags.DEFINE_integer("seed", 0, "Of the texts.")
flags.DEFINE_string("page", None, "Page to write to, beside printing.")
flags.DEFINE_string("picture", None, "PNG file to draw, beside the page.")

MOST_MEMORY = 1.2
SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
NUM_WORDS = 20_000
# Of a document: the logarithm of its sentences.
MEAN_LOG_SENTENCES, SPREAD_LOG_SENTENCES = 2.5, 1.0
SENTENCE_WORDS = 5, 31


class Row(NamedTuple):
    """A text, and what became of it."""

    text_bytes: int
    documents: int
    instances: int
    usage: sessions.SessionUsage

    @property
    def megabytes(self) -> float:
        return self.text_bytes / 1e6

    @property
    def mebibytes_used(self) -> float:
        return self.usage.peak_bytes / BYTES_PER_MIB


def main(argv) -> None:
    del argv
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(pathlib.Path(folder), list(map(float, FLAGS.megabytes)))
    text = section(rows)
    print(text)
    if FLAGS.picture:
        draw(rows, FLAGS.picture)
    if FLAGS.page:
        write_section(FLAGS.page, "corpus", text)


def measure(folder: pathlib.Path, megabytes: Sequence[float]) -> list[Row]:
    """Makes a vocabulary of the first text, and records of each."""
    text, vocab = folder / "text.txt", folder / "vocab.txt"
    rows = []
    for size in megabytes:
        write_text(text, int(size * 1e6), FLAGS.seed)
        if not vocab.exists():
            run_script(
                "create_vocab.py",
                input_file=text,
                output_file=vocab,
                vocab_size=FLAGS.vocab_size,
            )
        usage = run_script(
            "create_pretraining_data.py",
            input_file=text,
            output_file=folder / "out.tfrecord",
            vocab_file=vocab,
            dupe_factor=FLAGS.dupe_factor,
            num_workers=FLAGS.num_workers,
        )
        manifest = json.loads(
            (folder / "manifest.out.tfrecord.json").read_text()
        )
        counts = manifest["counts"]
        row = Row(
            text.stat().st_size, counts["documents"], counts["instances"], usage
        )
        print(row, file=sys.stderr)
        rows.append(row)
    return rows


def run_script(name: str, **settings: object) -> sessions.SessionUsage:
    """Runs a script of ours with these flags."""
    words = [f"--{flag}={value}" for flag, value in settings.items()]
    return sessions.run([sys.executable, str(ROOT / name), *words])


def documents(seed: int) -> Iterator[str]:
    """Yields documents without end, each with a blank line behind it."""
    rng = np.random.default_rng(seed)
    words = np.array(
        [
            "".join(rng.choice(SYLLABLES, count))
            for count in rng.integers(1, 5, NUM_WORDS)
        ]
    )
    weights = 1 / np.arange(1, NUM_WORDS + 1)
    weights /= weights.sum()
    while True:
        count = 1 + int(rng.lognormal(MEAN_LOG_SENTENCES, SPREAD_LOG_SENTENCES))
        lengths = rng.integers(*SENTENCE_WORDS, count)
        chosen = words[rng.choice(NUM_WORDS, lengths.sum(), p=weights)]
        sentences = np.split(chosen, np.cumsum(lengths)[:-1])
        yield "\n".join(map(" ".join, sentences)) + "\n\n"


def write_text(path: pathlib.Path, size: int, seed: int) -> None:
    """Writes whole documents of `size` bytes or a little more."""
    with path.open("w") as file:
        for document in documents(seed):
            file.write(document)
            if file.tell() >= size:
                return


def section(rows: Sequence[Row]) -> str:
    """The page's section, in Markdown."""
    titles = "text", "documents", "examples", "memory", "CPU time"
    lines = table([titles, *map(cells, rows)])
    first, last = rows[0], rows[-1]
    memory, cpu = growth(first, last)
    texts = last.text_bytes / first.text_bytes
    held = memory <= MOST_MEMORY and cpu <= texts
    verdict = "is" if held else "is not"
    return "\n".join(
        [
            "`create_pretraining_data.py` on made-up texts with "
            f"`--dupe_factor={FLAGS.dupe_factor}`",
            f"and {FLAGS.num_workers} workers; memory is that of all processes "
            "together.",
            "",
            *lines,
            "",
            f"{texts:.0f} times the text took {memory:.2f} times the memory "
            f"and {cpu:.1f} times the CPU time,",
            f"which {verdict} within the {MOST_MEMORY} and {texts:.0f} that "
            "were asked for.",
            *picture_link(),
            "",
            f"({machine()['processor']}; by `benchmarks/corpus_scale.py`.)",
        ]
    )


def growth(first: Row, last: Row) -> tuple[float, float]:
    """How many times the memory and the CPU time of the first the last took."""
    return (
        last.usage.peak_bytes / first.usage.peak_bytes,
        last.usage.cpu_seconds / first.usage.cpu_seconds,
    )


def cells(row: Row) -> list[str]:
    """A line of the table."""
    return [
        f"{row.megabytes:,.0f} MB",
        f"{row.documents:,}",
        f"{row.instances:,}",
        f"{row.mebibytes_used:,.0f} MiB",
        f"{row.usage.cpu_seconds:,.1f} s",
    ]


def picture_link() -> list[str]:
    """Shows the picture on the page, if both are asked for."""
    if not (FLAGS.page and FLAGS.picture):
        return []
    folder = pathlib.Path(FLAGS.page).resolve().parent
    path = pathlib.Path(FLAGS.picture).resolve().relative_to(folder)
    return ["", f"![Memory and time against the size of the text]({path})"]


def draw(rows: Sequence[Row], path: str) -> None:
    """Draws memory and time against the size of the text."""
    # Whoever only prints needs no matplotlib.
    from matplotlib.figure import Figure

    sizes = [row.megabytes for row in rows]
    panels = {
        "memory of all processes, MiB": [row.mebibytes_used for row in rows],
        "CPU time of all processes, s": [row.usage.cpu_seconds for row in rows],
    }
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    all_axes = figure.subplots(1, 2)
    for axes, (title, values) in zip(all_axes, panels.items(), strict=True):
        axes.plot(sizes, values, marker="o")
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("text, MB")
        axes.set_xlim(0)
        axes.set_ylim(0, 1.15 * max(values))
        axes.grid(alpha=0.3)
    limit = MOST_MEMORY * panels["memory of all processes, MiB"][0]
    all_axes[0].axhline(limit, linestyle="--", color="gray")
    all_axes[0].annotate(
        f"{MOST_MEMORY} times the first",
        (sizes[-1], limit),
        xytext=(0, 4),
        textcoords="offset points",
        ha="right",
        va="bottom",
        color="gray",
        fontsize=8,
    )
    all_axes[0].set_ylim(0, 1.15 * max(limit, *panels[next(iter(panels))]))
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    app.run(main)
