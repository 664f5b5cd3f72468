"""The largest batch of each kind of TPU, by the compiler itself.

    python benchmarks/tpu_compile.py --output=build/tpu.json

compiles the steps of the scripts (tpu_steps.py) with the compiler of TPUs
(tpu_compiler.py), on a machine without one: BERT-Base and Large, bfloat16, a
slice of four chips. It looks for the largest batch that fits into a chip, and
keeps every answer in the file, so that the same command goes on where it was
stopped; with that batch it then compiles prediction. A program takes some
minutes of one core and up to 10 GB.

    python benchmarks/tpu_section.py docs/scale.md build/tpu.json

writes the table. `make tpu` does both.
"""

import dataclasses
import importlib.metadata
import itertools
import json
import pathlib
import sys
import tempfile
from collections.abc import Iterator

import measured
import tpu_section
from absl import app, flags
from places import BENCHMARKS
from tpu_chips import CHIPS
from tpu_results import Case, Results, Trial

FLAGS = flags.FLAGS
ONE = BENCHMARKS / "tpu_compile_one.py"
PACKAGES = ("tensorflow", "keras", "jax", "libtpu")

flags.DEFINE_string("output", "build/tpu.json", "JSON file of the results.")
flags.DEFINE_list("tasks", tpu_section.TASKS, "The tasks.")
flags.DEFINE_list("kinds", tpu_section.KINDS, "The steps, in this order.")
flags.DEFINE_list("models", tpu_section.MODELS, "Sizes of the model.")
flags.DEFINE_list("lengths", tpu_section.LENGTHS, "Places of a sequence.")
flags.DEFINE_list("chips", ["v5e", "v6e", "v4", "v5p"], "Kinds of TPU.")
flags.DEFINE_integer(
    "slice", 4, "Chips that share a batch.", lower_bound=1, upper_bound=4
)


def main() -> None:
    path = pathlib.Path(FLAGS.output)
    results = read_results(path)
    for task, kind in itertools.product(FLAGS.tasks, FLAGS.kinds):
        look = look_for_largest if kind == "training" else look_at_prediction
        for case in cases(task, kind):
            look(results, case, path)


def read_results(path: pathlib.Path) -> Results:
    """Those that are there already, if they are of the same packages."""
    try:
        versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    except importlib.metadata.PackageNotFoundError as error:
        raise SystemExit(
            "error: expected the packages of tests/backends/tf220.txt, which "
            f"`make tpu` installs. Received: no {error.name}"
        ) from None
    if not path.exists():
        return Results(versions, FLAGS.slice)
    results = Results.read(path)
    if (results.versions, results.chips) != (versions, FLAGS.slice):
        raise SystemExit(
            f"error: expected --output of {versions} and {FLAGS.slice} chips; "
            f"name another file. Received: {path} of {results.versions} and "
            f"{results.chips} chips"
        )
    return results


def cases(task: str, kind: str) -> Iterator[Case]:
    """Those that are told of first: a table begun is of use, too."""
    for length, model, chip in itertools.product(
        FLAGS.lengths, FLAGS.models, FLAGS.chips
    ):
        yield Case(task, kind, model, int(length), chip)


def look_for_largest(results: Results, case: Case, path: pathlib.Path) -> None:
    available = results.available(case.chip) or CHIPS[case.chip].memory
    while size := results.next_batch_size(case, available):
        ask(results, case, size, path)


def look_at_prediction(
    results: Results, case: Case, path: pathlib.Path
) -> None:
    """Once, with the largest batch that there is training with."""
    training = dataclasses.replace(case, kind="training")
    largest = results.largest(training)
    if largest and not results.of(case):
        ask(results, case, largest.batch_size, path)


def ask(
    results: Results, case: Case, batch_size: int, path: pathlib.Path
) -> None:
    """Compiles, keeps the answer and tells it."""
    trial = compile_one(case, batch_size)
    results.trials.append(trial)
    results.write(path)
    print(tpu_section.line(trial), flush=True)


def compile_one(case: Case, batch_size: int) -> Trial:
    """Asks the compiler, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        usage = measured.run(
            [
                *(sys.executable, str(ONE), f"--task={case.task}"),
                f"--kind={case.kind}",
                f"--model={case.model}",
                f"--max_seq_length={case.max_seq_length}",
                f"--batch_size={batch_size}",
                f"--chip={case.chip}",
                f"--chips={FLAGS.slice}",
            ],
            place,
            {},
        )
        answer = json.loads((place / "stdout").read_text(encoding="utf-8"))
    return Trial(case, batch_size, **answer, seconds=usage.cpu_seconds)


if __name__ == "__main__":
    app.run(lambda argv: main())
