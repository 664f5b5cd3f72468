"""Equality of the weights on any devices: replicas, workers and hosts.

    python benchmarks/equality.py --page=docs/reports/equalities.md

runs scripts on one device, two and four replicas, two worker processes with one
--output_dir, and two hosts with separate folders (layouts.py). Each trains for
30 steps, with batches accumulated in one, two and three parts, and its last
checkpoint is compared with what one device writes without parts. Then all of
them evaluate and predict with the same model: once with the same total batch
size, once with the same size per device. It takes twenty minutes on two cores.
"""

# Before anything that imports TensorFlow.
from bert_tf import start_tensorflow

start_tensorflow.quietly()

import collections
import dataclasses
import itertools
import pathlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import comparison
import numpy as np
import sides
import small_tasks
import tensorflow as tf
from layouts import LAYOUTS, Unavailable
from layouts import run as run_script

from bert_tf import cli
from bert_tf.base import files
from bert_tf.base.options import option
from bert_tf.checkpoints import tf1 as checkpoints
from bert_tf.data import pipeline
from bert_tf.data.records import pretraining_schema

STEPS = 30
NUM_TRAINED = 31
# Values of --gradient_accumulation_steps.
PARTS = (1, 2, 3)
# The layout that the others are compared with.
ONE = "one_device"
# A training without clipping must differ this much from one with clipping, or
# the comparison would not detect gradients of the wrong norm.
APART = 1e-4


@dataclasses.dataclass(frozen=True, kw_only=True)
class EqualityConfig(comparison.PageOptions):
    """Options of this program."""

    layouts: tuple[str, ...] = option(
        f"Devices, of {', '.join(LAYOUTS)}.", default=tuple(LAYOUTS)
    )


class Workload(NamedTuple):
    """A script and its flags."""

    script: str  # Its path in the project.
    # Writes the data into a folder and returns the flags that name it.
    write: Callable[[pathlib.Path], Mapping[str, object]]
    training: Mapping[str, object]  # STEPS steps.
    evaluation: Mapping[str, object] = {}


_OPTIMIZER = {
    "train_batch_size": 24,
    "learning_rate": 1e-3,
    "max_grad_norm": 0.5,
    "jit_compile": "false",
}
_STEPS = {**_OPTIMIZER, "num_train_steps": STEPS, "num_warmup_steps": 3}
WORKLOADS = {
    "pretraining": Workload(
        "run_pretraining.py",
        small_tasks.write_pretraining,
        {**_STEPS, "do_train": True},
        {"do_eval": True, "eval_batch_size": 4, "max_eval_steps": 0},
    ),
    "classification": Workload(
        "run_classifier.py",
        small_tasks.write_classification,
        {
            **_OPTIMIZER,
            "do_train": True,
            # 31 examples: int(31 / 24 * 23.25) steps.
            "num_train_epochs": 23.25,
            # Its gradients have a tenth of the norm.
            "max_grad_norm": 0.05,
        },
        {
            "do_eval": True,
            "do_predict": True,
            "eval_batch_size": 3,
            "predict_batch_size": 2,
        },
    ),
    "ragged": Workload(
        "benchmarks/ragged_epochs.py", lambda folder: {}, _STEPS
    ),
}


# Trainings.


class Difference(NamedTuple):
    """The largest differences between the results of two trainings.

    Differences of Adam's moments are relative to the largest moment of their
    kind. Unlike updates, they depend on the norm of the gradients.
    """

    weights: float
    moments: float

    def __str__(self) -> str:
        return ", ".join(map(number, self))


def read(folder: pathlib.Path, step: int) -> dict[str, np.ndarray]:
    """Returns the tensors of a checkpoint."""
    reader = checkpoints.Reader(str(folder / f"model.ckpt-{step}"))
    return {name: reader[name] for name in reader.shapes}


def difference(
    tensors: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray]
) -> Difference:
    """Compares two checkpoints.

    Raises:
      ValueError: They differ in their tensors or in their steps.
    """
    counters = [name for name in others if others[name].dtype.kind == "i"]
    if tensors.keys() != others.keys() or any(
        tensors[name] != others[name] for name in counters
    ):
        raise ValueError("the checkpoints differ in their tensors or steps")
    gaps, sizes = collections.defaultdict(list), collections.defaultdict(list)
    for name in others.keys() - set(counters):
        last = name.rpartition("/")[2]
        kind = last if last.startswith("adam_") else "weight"
        gaps[kind].append(np.abs(tensors[name] - others[name]).max())
        sizes[kind].append(np.abs(others[name]).max())
    # If a value is NaN, so is NumPy's max, unlike Python's.
    moments = [np.max(gaps[k]) / np.max(sizes[k]) for k in ("adam_m", "adam_v")]
    return Difference(float(np.max(gaps["weight"])), float(np.max(moments)))


def training_rows(
    config: EqualityConfig, data: Mapping[str, Mapping], folder: pathlib.Path
) -> Iterator[list[str]]:
    """Trains every workload on every layout; yields the rows of the table.

    Raises:
      ValueError: The gradients of a workload are too short to be clipped.
    """

    def train(key: str, name: str, parts: int, **changes: object):
        workload = WORKLOADS[key]
        accumulation = {"gradient_accumulation_steps": parts}
        flags = {**data[key], **workload.training, **accumulation, **changes}
        place = folder / key / "-".join([name, str(parts), *changes])
        output = run_script(LAYOUTS[name], workload.script, flags, place)
        return read(output, STEPS)

    expected = {key: train(key, ONE, 1) for key in WORKLOADS}
    unclipped = []
    for key in WORKLOADS:
        free = difference(train(key, ONE, 1, max_grad_norm=0), expected[key])
        if not free.weights >= APART:
            raise ValueError(
                "no gradients exceed --max_grad_norm: without clipping the "
                f"weights differ by only {free.weights:.1e}"
            )
        unclipped.append(str(free))
    titles = [f"`{workload.script}`" for workload in WORKLOADS.values()]
    yield ["devices", "`--gradient_accumulation_steps`", *titles]
    for name, parts in itertools.product(config.layouts, PARTS):
        if (name, parts) == (ONE, 1):
            continue
        row = [LAYOUTS[name].title, str(parts)]
        for key, tensors in expected.items():
            try:
                found = difference(train(key, name, parts), tensors)
            except Unavailable as error:
                found = f"not run: {error}"
            row.append(str(found))
        print(*row, sep="; ", flush=True)
        yield row
    yield ["*one device, gradients not clipped*", "1", *unclipped]


# Answers.


class Answers(NamedTuple):
    """The largest differences between two evaluations.

    `rows` counts the predictions whose text or label differs.
    """

    metrics: float
    probabilities: float = 0.0
    rows: int = 0


def compare_answers(
    folder: pathlib.Path, other: pathlib.Path, alike: bool = False
) -> Answers:
    """Compares the files of two evaluations.

    `alike` says that each device has batches as large as a single device's.
    Then there are fewer batches, and `loss`, a mean over batches, is ignored.
    """
    found, expected = (
        dict(line.split(" = ") for line in _lines(path / "eval_results.txt"))
        for path in (folder, other)
    )
    if alike and "eval_loss" in expected:
        del found["loss"], expected["loss"]
    if found.keys() != expected.keys():
        raise ValueError(f"the metrics differ: {[*found]}, {[*expected]}")
    gap = max(abs(float(found[n]) - float(expected[n])) for n in expected)
    if not (other / "test_results.tsv").exists():
        return Answers(gap)
    ours, theirs = (
        np.loadtxt(path / "test_results.tsv", delimiter="\t")
        for path in (folder, other)
    )
    rows, others = (
        [line.split("\t")[:3] for line in _lines(path / "predictions.tsv")]
        for path in (folder, other)
    )
    differ = sum(a != b for a, b in zip(rows, others, strict=True))
    return Answers(gap, float(np.abs(ours - theirs).max()), differ)


def _lines(path: pathlib.Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def answer_rows(
    config: EqualityConfig,
    data: Mapping[str, Mapping],
    folder: pathlib.Path,
    alike: bool,
) -> Iterator[list[str]]:
    """Evaluates the models on every layout; yields the rows of the table."""
    keys = [key for key, workload in WORKLOADS.items() if workload.evaluation]

    def answer(key: str, name: str) -> pathlib.Path:
        workload, layout = WORKLOADS[key], LAYOUTS[name]
        flags = {
            **data[key],
            **workload.evaluation,
            "init_checkpoint": folder / key / f"{ONE}-1" / "output" / "release",
            "jit_compile": "false",
        }
        if alike:
            for flag in flags:
                if flag.endswith("_batch_size"):
                    flags[flag] *= layout.replicas
        place = folder / key / f"{name}-{'alike' if alike else 'shared'}"
        return run_script(layout, workload.script, flags, place)

    titles = [f"metrics of `{WORKLOADS[key].script}`" for key in keys]
    yield ["devices", *titles, "probabilities", "rows or labels that differ"]
    expected = {key: answer(key, ONE) for key in keys}
    for name in config.layouts:
        if name == ONE:
            continue
        try:
            found = [
                compare_answers(answer(key, name), expected[key], alike)
                for key in keys
            ]
        except Unavailable as error:
            yield [LAYOUTS[name].title, f"not run: {error}", "", "", ""]
            continue
        yield [
            LAYOUTS[name].title,
            *(number(answers.metrics) for answers in found),
            number(max(answers.probabilities for answers in found)),
            str(sum(answers.rows for answers in found)),
        ]


# What workers read.


def share_rows(flags: Mapping[str, object]) -> Iterator[list[str]]:
    """Yields the number of examples per worker, for each number of workers."""
    trained, evaluated = (
        files.expand(str(flags[name]), name)
        for name in ("input_file", "eval_input_file")
    )
    schema = pretraining_schema(small_tasks.LENGTH, small_tasks.PREDICTIONS)

    def evaluation(**worker: int) -> list[bytes]:
        stream = pipeline.evaluation_dataset(
            evaluated, schema, batch_size=1, **worker
        )
        return _ids(stream.filter(lambda row: row["is_real_example"][0] > 0))

    def epoch(**worker: int) -> list[bytes]:
        """Returns the examples that a worker takes of the first epoch."""
        stream = pipeline.training_dataset(
            trained, schema, batch_size=1, seed=0, **worker
        )
        first, step = worker.get("shard", 0), worker.get("num_shards", 1)
        return _ids(stream.take(len(range(first, NUM_TRAINED, step))))

    yield ["workers", "in an epoch of training", "in an evaluation"]
    for count in (2, 3, 4):
        workers = [{"num_shards": count, "shard": n} for n in range(count)]
        yield [
            str(count),
            *(
                each_once([read(**worker) for worker in workers], read())
                for read in (epoch, evaluation)
            ),
        ]


def _ids(stream: tf.data.Dataset) -> list[bytes]:
    return [row["input_ids"].tobytes() for row in stream.as_numpy_iterator()]


def each_once(parts: Sequence[Sequence[bytes]], every: Sequence[bytes]) -> str:
    """Returns the sizes of the parts, as "16 + 15".

    Raises:
      ValueError: An example is missing or occurs twice.
    """
    if sorted(itertools.chain(*parts)) != sorted(set(every)):
        raise ValueError(f"{len(every)} examples are not read once each")
    return " + ".join(str(len(part)) for part in parts)


# The section.


def number(value: float) -> str:
    return f"{value:.1e}" if value else "0"


def run(config: EqualityConfig) -> None:
    """Runs everything on every layout and writes the section."""
    with tempfile.TemporaryDirectory() as name:
        folder, data = pathlib.Path(name), {}
        for key, workload in WORKLOADS.items():
            (folder / key / "data").mkdir(parents=True)
            data[key] = workload.write(folder / key / "data")
        text = comparison.paragraphs(
            [circumstances()],
            [
                "Differences from one device. Each cell has two numbers: the "
                "largest difference of a weight, and the largest difference of "
                "a moment of Adam, divided by the largest moment. The last row "
                "is a control, one device without clipping:"
            ],
            comparison.table(training_rows(config, data, folder)),
            [
                "Evaluation and prediction with the same model: the largest "
                "difference from the results of one device, with the same "
                "per-device batch size as on one device. The classifier's "
                "`loss` is left out, since it is a mean over batches:"
            ],
            comparison.table(answer_rows(config, data, folder, True)),
            [
                "The same, with one batch divided among the devices. Small "
                "differences are expected, since products of matrices of "
                "different sizes are rounded differently:"
            ],
            comparison.table(answer_rows(config, data, folder, False)),
            ["Examples read per worker; no example is read twice:"],
            comparison.table(share_rows(data["pretraining"])),
        )
    comparison.publish(text, config.page, "equalities")


def circumstances() -> str:
    versions = sides.versions_of(sys.executable, "tensorflow", "keras").items()
    packages = ", ".join(f"{name} {version}" for name, version in versions)
    return f"""\
A BERT with 2 layers of width 16 without dropout (--head_dropout=0 for the
classifier). Each run has {STEPS} steps of 24 examples, a learning rate of 0.001
and the same seed. Gradients are clipped to a norm of 0.5, or 0.05 for the
classifier, whose gradients have about a tenth of the norm. The two scripts
train on 31 examples; a batch may contain the end of one epoch and the start of
the next. In `benchmarks/ragged_epochs.py`, the last column, the last batch of
each epoch has only 5 examples. The first replica, worker or host gets all of
them; the others get none. Replicas are CPU devices; workers are processes of
one machine with one --output_dir; hosts are network namespaces joined by a
veth pair, each with its own folder.

- {sides.machine()}; {packages}
- `python benchmarks/equality.py --page=docs/reports/equalities.md`"""


if __name__ == "__main__":
    cli.main(run)
