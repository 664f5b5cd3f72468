"""Strings in, labels out: an export beside transformers and ONNX Runtime.

    python benchmarks/serving.py --output=build/serving.json

gives the same weights to all sides: a classifier made of MiniLM and a head of
random numbers. Ours is the SavedModel of `serving.export`, loaded by a process
that knows nothing of bert_tf; the others are what peers/ has. Each side is a
process of its own on the same cores, which stays; round by round, in turn, one
after another is sent the same texts, in batches of 1 and in batches of 32. The
texts are real ones in the order of their file, hence of all lengths; every side
pads to the longest of a batch.

First all texts are answered by all sides: that warms up, and the probabilities
have to be the same. Then the rounds are timed, from strings to labels. In the
end there are the tables that serving_section.py makes for docs/performance.md.

bfloat16 is `--mixed_precision=bfloat16` for ours; for torch, autocast, which is
the same, and weights in bfloat16, which is faster and less exact. ONNX Runtime
computes in float32 alone on CPUs. torch compiles with a C++ compiler; without
one those sides are left out. The peers are installed into virtual environments
of their own, once; --peer_python and --onnxruntime_python name such as are
there. Nothing else should run meanwhile; what others took is told.
"""

import contextlib
import dataclasses
import os
import pathlib
import sys
import tempfile
from collections.abc import Mapping, Sequence

import benchmark_flags
import measured
import peer_environment
import serving_section
from absl import app, flags
from answerers import Answerer, answerer
from minilm import minilm, write_classifier
from places import BENCHMARKS, DATA, PEERS
from results_file import command_line
from serving_comparison import (
    MANY,
    ONE,
    Agreement,
    Comparison,
    Round,
    Settings,
)
from serving_sides import ONNX, SIDES, WEIGHTS
from turns import in_turn

from bert_tf.data.tables import read_tsv
from bert_tf.errors import InputError

FLAGS = flags.FLAGS

FLAG_OF_PEER = {
    "huggingface": "peer_python",
    "onnxruntime": "onnxruntime_python",
}
# What rounding may do to a probability, before it is another model's.
MOST_DIFFERENT = {"float32": 1e-4, "bfloat16": 0.1}

flags.DEFINE_string(
    "data_file",
    str(DATA / "glue" / "SST-2" / "dev.tsv"),
    "Table with a line of titles.",
)
flags.DEFINE_string("column", "sentence", "Title of the texts' column.")
flags.DEFINE_integer(
    "num_texts", None, "How many of the first; all unless given.", lower_bound=1
)
flags.DEFINE_string(
    "init_checkpoint",
    None,
    "Folder of weights in Hugging Face's layout; MiniLM unless given.",
)
flags.DEFINE_integer("max_seq_length", 128, "Longest sequence, in pieces.")
benchmark_flags.define_rounds(5)
benchmark_flags.define_num_threads()
benchmark_flags.define_some("variants", SIDES)
benchmark_flags.define_output()
benchmark_flags.define_interpreter("peer_python", "huggingface")
benchmark_flags.define_interpreter("onnxruntime_python", "onnxruntime")


def main() -> None:
    variables = measured.hold_to_cpus(FLAGS.num_threads)
    texts = read_texts()
    comparison = Comparison(
        command_line(),
        settings_of_flags(len(texts)),
        measured.machine(),
        left_out=left_out(),
    )
    names = [name for name in FLAGS.variants if name not in comparison.left_out]
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.ExitStack() as stack,
    ):
        place = Place(pathlib.Path(folder), variables)
        place.make_models(comparison.settings, names)
        sides = {
            name: stack.enter_context(place.start(name, comparison.settings))
            for name in names
        }
        comparison.versions = {
            name: side.versions for name, side in sides.items()
        }
        comparison.agreement = compare(sides, texts)
        measure(comparison, sides, texts)
    print(serving_section.section(comparison))


def read_texts() -> list[str]:
    """Texts for full batches of every size.

    Raises:
      SystemExit: There is no such file or column, or there are too few.
    """
    try:
        titles, *rows = (fields for fields, _ in read_tsv(FLAGS.data_file))
    except InputError as error:
        raise SystemExit(f"error: {error}; give --data_file") from None
    if FLAGS.column not in titles:
        raise SystemExit(
            f"error: expected --column among {', '.join(titles)}. Received: "
            f"{FLAGS.column}"
        )
    column = titles.index(FLAGS.column)
    texts = [fields[column] for fields in rows][: FLAGS.num_texts]
    if len(texts) < MANY:
        raise SystemExit(
            f"error: expected {MANY} texts or more. Received: {len(texts)} of "
            f"{FLAGS.data_file}"
        )
    return texts[: len(texts) // MANY * MANY]


def settings_of_flags(num_texts: int) -> Settings:
    return Settings(
        data_file=os.path.abspath(FLAGS.data_file),
        column=FLAGS.column,
        num_texts=num_texts,
        init_checkpoint=os.path.abspath(FLAGS.init_checkpoint or minilm()),
        max_seq_length=FLAGS.max_seq_length,
        num_threads=FLAGS.num_threads,
    )


def left_out() -> dict[str, str]:
    """Sides that cannot be measured here, and why."""
    return peer_environment.left_out(
        name for name in FLAGS.variants if SIDES[name].is_compiled
    )


def interpreter(peer: str | None) -> str:
    if peer is None:
        return sys.executable
    return benchmark_flags.interpreter(FLAG_OF_PEER[peer], peer)


@dataclasses.dataclass(frozen=True)
class Place:
    """A folder for the models and for what the sides say, and variables."""

    folder: pathlib.Path
    variables: Mapping[str, str]

    @property
    def environment(self) -> dict[str, str]:
        return {**self.variables, **peer_environment.quiet(self.folder)}

    def make_models(self, settings: Settings, names: Sequence[str]) -> None:
        """Makes what the sides load, of the same weights."""
        weights = self.folder / WEIGHTS
        weights.mkdir()
        write_classifier(settings.init_checkpoint, str(weights))
        for name in names:
            side = SIDES[name]
            if side.peer is None:
                self.export(side.model, settings)
            elif side.peer == "onnxruntime":
                self.run(
                    interpreter(side.peer),
                    str(PEERS / "onnx_export.py"),
                    f"--model={weights}",
                    f"--output={self.folder / ONNX}",
                )

    def export(self, precision: str, settings: Settings) -> None:
        """Exports by the library, into a folder that has a name."""
        versions = self.folder / "exports" / precision
        self.run(
            sys.executable,
            str(BENCHMARKS / "export_classifier.py"),
            f"--init_checkpoint={self.folder / WEIGHTS}",
            f"--export_dir={versions}",
            f"--max_seq_length={settings.max_seq_length}",
            f"--mixed_precision={precision}",
        )
        (version,) = versions.iterdir()
        version.rename(self.folder / precision)

    def run(self, *command: str) -> None:
        measured.run(command, self.folder, self.environment)

    def start(
        self, name: str, settings: Settings
    ) -> contextlib.AbstractContextManager[Answerer]:
        side = SIDES[name]
        words = side.command(
            self.folder, settings.max_seq_length, settings.num_threads
        )
        return answerer(
            [interpreter(side.peer), *words],
            self.folder / f"{name}.stderr",
            self.environment,
        )


def compare(
    sides: Mapping[str, Answerer], texts: Sequence[str]
) -> dict[str, Agreement]:
    """The answers of all sides, in both sizes, beside those of the first.

    Raises:
      SystemExit: They are too different to be those of the same model.
    """
    agreement: dict[str, Agreement] = {}
    first = None
    for name, side in sides.items():
        replies = [side.ask(batches(texts, size)) for size in (ONE, MANY)]
        answers = {
            key: [row for reply in replies for row in reply[key]]
            for key in ("labels", "probabilities")
        }
        first = first or answers
        found = Agreement.of(first, answers)
        limit = MOST_DIFFERENT[SIDES[name].precision]
        if not found.largest_difference <= limit:
            raise SystemExit(
                f"error: expected probabilities of {name} that differ from "
                f"those of {next(iter(sides))} by {limit} at most. Received: "
                f"{found.largest_difference}"
            )
        agreement[name] = found
    return agreement


def measure(
    comparison: Comparison, sides: Mapping[str, Answerer], texts: Sequence[str]
) -> None:
    """Lets the sides take turns; keeps every round and prints it."""
    for number in range(FLAGS.rounds):
        for size in (MANY, ONE):
            for name in in_turn(list(sides), number):
                asked = batches(texts, size)
                busy = measured.busy_seconds()
                reply = sides[name].ask(asked)
                busy = measured.busy_seconds() - busy
                turn = Round.of(name, asked, reply, busy)
                comparison.rounds.append(turn)
                print(serving_section.line(turn), flush=True)
                if FLAGS.output:
                    comparison.write(pathlib.Path(FLAGS.output))


def batches(texts: Sequence[str], size: int) -> list[Sequence[str]]:
    return [texts[at : at + size] for at in range(0, len(texts), size)]


if __name__ == "__main__":
    app.run(lambda argv: main())
