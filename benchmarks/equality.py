"""Equality of the weights on any devices: replicas, workers and hosts.

    python benchmarks/equality.py --page=docs/scale.md

runs scripts on one device, two and four replicas, two worker processes with one
--output_dir, and two hosts with folders of their own (layouts.py). Each trains
for 30 steps, with batches accumulated in one, two and three parts, and its last
checkpoint is compared with that of one device without accumulation. Then all
evaluate and predict with the same model: with the same flags, and with as many
examples per device as the one device has. It takes twenty minutes on two cores.
"""

# Before anything that imports TensorFlow.
import bert_tf.quiet_tensorflow  # noqa: F401

# isort: split
import collections
import contextlib
import dataclasses
import itertools
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from comparison import machine, paragraphs, publish, table
from layouts import LAYOUTS, Unavailable
from layouts import run as run_script
from sides import our_versions
from small_tasks import (
    CONFIG,
    LENGTH,
    PREDICTIONS,
    write_classification,
    write_pretraining,
)

from bert_tf import cli, files
from bert_tf.data import pipeline
from bert_tf.data.schema import Schema, pretraining_schema
from bert_tf.options import Options, option
from bert_tf.training import checkpoints

STEPS = 30
# Values of --gradient_accumulation_steps.
PARTS = (1, 2, 3)
# The layout that the others are compared with.
ONE = "one_device"
# A training without clipping must end this far from one with clipping, or the
# comparison would not notice gradients of a wrong length.
APART = 1e-4


@dataclasses.dataclass(frozen=True, kw_only=True)
class EqualityConfig(Options):
    """Options of this program."""

    page: str | None = option(
        "Markdown page whose section is replaced.", default=None
    )
    folder: str | None = option(
        "New folder in which all runs are kept.", default=None
    )


class Workload(NamedTuple):
    """A script and its flags.

    Attributes:
      script: The path of the script in the project.
      write: Writes the data into a folder and returns the flags that name it.
      training: The flags of a training of STEPS steps.
      evaluation: The flags of an evaluation, if the script has one.
      alike: More flags that make the numbers independent of the batch.
    """

    script: str
    write: Callable[[pathlib.Path], Mapping[str, object]]
    training: Mapping[str, object]
    evaluation: Mapping[str, object] = {}
    alike: Mapping[str, object] = {}


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
        write_pretraining,
        {**_STEPS, "do_train": True},
        {"do_eval": True, "eval_batch_size": 4, "max_eval_steps": 0},
    ),
    "classification": Workload(
        "run_classifier.py",
        write_classification,
        {
            **_OPTIMIZER,
            "do_train": True,
            # 31 examples: int(31 / 24 * 23.25) steps.
            "num_train_epochs": 23.25,
            # Its gradients are a tenth as long.
            "max_grad_norm": 0.05,
        },
        {
            "do_eval": True,
            "do_predict": True,
            "eval_batch_size": 3,
            "predict_batch_size": 2,
        },
        {"padding": "max_length"},
    ),
    "ragged": Workload(
        "benchmarks/ragged_epochs.py", lambda folder: {}, _STEPS
    ),
}


# What is compared.


class Difference(NamedTuple):
    """How far two trainings ended apart.

    Attributes:
      weights: The largest difference of a weight.
      moments: The largest difference of a moment of Adam, relative to the
        largest moment of its kind. Unlike an update it depends on the length
        of the gradients.
    """

    weights: float
    moments: float


class Answers(NamedTuple):
    """How far two evaluations are apart.

    Attributes:
      metrics: The largest difference of a metric.
      probabilities: The largest difference of a probability; None if the
        script does not predict.
      rows: The number of predictions with another text or label.
    """

    metrics: float
    probabilities: float | None = None
    rows: int = 0


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
    gaps, sizes = collections.Counter(), collections.Counter()
    for name in others.keys() - set(counters):
        last = name.rpartition("/")[2]
        kind = last if last.startswith("adam_") else "weight"
        gap = float(np.abs(tensors[name] - others[name]).max())
        gaps[kind] = max(gaps[kind], gap, key=_nan_first)
        sizes[kind] = max(sizes[kind], float(np.abs(others[name]).max()))
    moments = [gaps[kind] / sizes[kind] for kind in ("adam_m", "adam_v")]
    return Difference(float(gaps["weight"]), max(moments, key=_nan_first))


def _nan_first(number: float) -> float:
    """Makes `max` return NaN if there is one."""
    return np.inf if np.isnan(number) else number


def compare_answers(
    folder: pathlib.Path, other: pathlib.Path, alike: bool = False
) -> Answers:
    """Compares the files of two evaluations.

    Args:
      folder: The folder of one.
      other: The folder of the other.
      alike: Whether to ignore `loss`, a mean of means of batches, since the
        batches differ in size.
    """
    found, expected = (
        {
            name: float(value)
            for name, value in (line.split(" = ") for line in lines)
        }
        for lines in (
            _lines(path / "eval_results.txt") for path in (folder, other)
        )
    )
    if alike and "eval_loss" in expected:
        del found["loss"], expected["loss"]
    if found.keys() != expected.keys():
        raise ValueError(f"the metrics differ: {[*found]}, {[*expected]}")
    gap = max(abs(found[name] - expected[name]) for name in expected)
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


# What workers read.


def shares(
    train_files: Sequence[str],
    eval_files: Sequence[str],
    schema: Schema,
    num_workers: int,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the number of examples that each worker reads.

    Args:
      train_files: Records that are all different.
      eval_files: The same.
      schema: The schema of both.
      num_workers: The number of workers.

    Returns:
      The numbers in the first epoch of training, and in an evaluation.

    Raises:
      ValueError: The workers together do not read each example once.
    """

    def evaluated(paths: Sequence[str], **worker: int) -> list[bytes]:
        data = pipeline.evaluation_dataset(
            paths, schema, batch_size=1, **worker
        )
        real = data.filter(lambda row: row["is_real_example"][0] > 0)
        return _examples(real)

    workers = [
        {"num_shards": num_workers, "shard": shard}
        for shard in range(num_workers)
    ]
    every, held_out = evaluated(train_files), evaluated(eval_files)
    trained = []
    for shard, worker in enumerate(workers):
        stream = pipeline.training_dataset(
            train_files, schema, batch_size=1, seed=0, **worker
        )
        # The workers take the examples of the stream in turn.
        count = len(range(shard, len(every), num_workers))
        trained.append(_examples(stream.take(count)))
    found = [evaluated(eval_files, **worker) for worker in workers]
    return each_once(trained, every), each_once(found, held_out)


def _examples(stream: tf.data.Dataset) -> list[bytes]:
    return [row["input_ids"].tobytes() for row in stream.as_numpy_iterator()]


def each_once(
    parts: Sequence[Sequence[bytes]], every: Sequence[bytes]
) -> tuple[int, ...]:
    """Returns the sizes of the parts.

    Raises:
      ValueError: Together they are not all examples, each of them once.
    """
    found = collections.Counter(example for part in parts for example in part)
    expected = collections.Counter(every)
    if found != expected or found.total() != len(found):
        raise ValueError(
            f"of {len(every)} examples {len(expected - found)} were not read, "
            f"and {found.total() - len(found)} were read again"
        )
    return tuple(map(len, parts))


# The runs.


@dataclasses.dataclass
class Results:
    """What was found.

    Attributes:
      trained: Layout, parts, workload -> difference from one device.
      unclipped: Workload -> difference of a training without clipping on one
        device, which shows the size of a real difference.
      answered: Whether batches are alike, layout, workload -> difference from
        one device.
      left_out: Layout -> why it could not run.
      shares: Number of workers -> see `shares`.
    """

    trained: dict[tuple[str, int, str], Difference] = dataclasses.field(
        default_factory=dict
    )
    unclipped: dict[str, Difference] = dataclasses.field(default_factory=dict)
    answered: dict[tuple[bool, str, str], Answers] = dataclasses.field(
        default_factory=dict
    )
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)
    shares: dict[int, Any] = dataclasses.field(default_factory=dict)


def run(config: EqualityConfig) -> Results:
    """Runs everything on every layout and writes the section."""
    results = Results()
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(
            config.folder or stack.enter_context(tempfile.TemporaryDirectory())
        )
        for key, workload in WORKLOADS.items():
            data = folder / key / "data"
            data.mkdir(parents=True)
            flags = workload.write(data)
            if key == "pretraining":
                measure_shares(results, flags)
            model = measure_training(results, key, flags, folder / key)
            if workload.evaluation:
                measure_answers(results, key, flags, model, folder / key)
    publish(section(results), config.page, "equalities")
    return results


def measure_shares(results: Results, flags: Mapping[str, object]) -> None:
    paths = [
        files.expand(str(flags[name]), name)
        for name in ("input_file", "eval_input_file")
    ]
    schema = pretraining_schema(LENGTH, PREDICTIONS)
    for num_workers in (2, 3, 4):
        results.shares[num_workers] = shares(*paths, schema, num_workers)


def measure_training(
    results: Results,
    key: str,
    data: Mapping[str, object],
    folder: pathlib.Path,
) -> pathlib.Path:
    """Trains a workload on every layout; returns the folder of one device.

    Raises:
      ValueError: Its gradients are too short to be clipped.
    """
    workload = WORKLOADS[key]

    def train(name: str, parts: int, **changes: object) -> pathlib.Path:
        accumulation = {"gradient_accumulation_steps": parts}
        flags = {**data, **workload.training, **accumulation, **changes}
        place = folder / "-".join([name, str(parts), *changes])
        return run_script(LAYOUTS[name], workload.script, flags, place)

    model = train(ONE, 1)
    expected = read(model, STEPS)
    free = difference(read(train(ONE, 1, max_grad_norm=0), STEPS), expected)
    print(f"{key}, gradients not clipped: {free}", flush=True)
    require_apart(free)
    results.unclipped[key] = free
    for name, parts in itertools.product(LAYOUTS, PARTS):
        if (name, parts) == (ONE, 1) or name in results.left_out:
            continue
        try:
            found = difference(read(train(name, parts), STEPS), expected)
        except Unavailable as error:
            results.left_out[name] = str(error)
            continue
        results.trained[name, parts, key] = found
        print(f"{key}, {name}, {parts} part(s): {found}", flush=True)
    return model


def require_apart(unclipped: Difference) -> None:
    """Raises ValueError unless a training without clipping ended elsewhere."""
    if not unclipped.weights >= APART:
        raise ValueError(
            "no gradients longer than --max_grad_norm: without clipping the "
            f"weights differ by {unclipped.weights:.1e} only"
        )


def measure_answers(
    results: Results,
    key: str,
    data: Mapping[str, object],
    model: pathlib.Path,
    folder: pathlib.Path,
) -> None:
    """Evaluates a model on every layout, with both sizes of batches."""
    workload = WORKLOADS[key]

    def answer(name: str, alike: bool) -> pathlib.Path:
        layout = LAYOUTS[name]
        flags = {
            **data,
            **workload.evaluation,
            "init_checkpoint": model / "release",
            "jit_compile": "false",
        }
        if alike:
            flags |= workload.alike
            for flag in flags:
                if flag.endswith("_batch_size"):
                    flags[flag] *= layout.replicas
        place = folder / f"{name}-{'alike' if alike else 'shared'}"
        return run_script(layout, workload.script, flags, place)

    for alike in (True, False):
        expected = answer(ONE, alike)
        for name in LAYOUTS:
            if name == ONE or name in results.left_out:
                continue
            found = compare_answers(answer(name, alike), expected, alike)
            results.answered[alike, name, key] = found
            print(f"{key}, {name}, alike: {alike}: {found}", flush=True)


# The section.


def section(results: Results) -> str:
    """Returns everything that was found, in Markdown."""
    return paragraphs(
        [circumstances()],
        [
            "Largest difference of a weight from that of one device, and of a "
            "moment of Adam relative to the largest moment:"
        ],
        table(_trained(results)),
        [
            "Largest difference from one device of the answers of the same "
            "model, with as many examples per device as on the one device "
            "(without the classifier's `loss`, a mean of means of batches):"
        ],
        table(_answered(results, True)),
        [
            "The same if the devices share one batch: products of matrices of "
            "other sizes are rounded differently."
        ],
        table(_answered(results, False)),
        ["The examples that workers read, each once:"],
        table(_shares(results)),
    )


def circumstances() -> str:
    versions = our_versions("tensorflow", "keras").items()
    packages = ", ".join(f"{name} {version}" for name, version in versions)
    clipped = WORKLOADS["classification"].training["max_grad_norm"]
    return f"""\
A BERT of {CONFIG["num_hidden_layers"]} layers of {CONFIG["hidden_size"]}, no
dropout (the two rates of `bert_config.json` are 0, and `--head_dropout=0` for
the classifier), {STEPS} steps of {_OPTIMIZER["train_batch_size"]} examples, a
learning rate of {_OPTIMIZER["learning_rate"]:g}, gradients clipped to a norm of
{_OPTIMIZER["max_grad_norm"]} ({clipped} for the classifier, whose gradients are
shorter), one seed. The scripts have 31 examples, in batches that continue into
the next epoch. The last column is `benchmarks/ragged_epochs.py`: an epoch ends
in a batch of 5, of which the second of two replicas, workers or hosts gets
none, and of four replicas three get none. Replicas are CPU devices; workers are
processes of one machine with one --output_dir; hosts are network namespaces
joined by a veth pair, each with a folder of its own.

- {machine()}; {packages}
- `python benchmarks/equality.py --page=docs/scale.md`"""


def _trained(results: Results) -> Iterator[Sequence[str]]:
    titles = [f"`{workload.script}`" for workload in WORKLOADS.values()]
    yield ["devices", "parts of a batch", *titles]
    for name, parts in itertools.product(LAYOUTS, PARTS):
        found = [results.trained.get((name, parts, key)) for key in WORKLOADS]
        if any(found):
            yield [LAYOUTS[name].title, str(parts), *map(_show, found)]
    yield from _left_out(results, 1 + len(titles))
    found = [results.unclipped.get(key) for key in WORKLOADS]
    yield ["*one device, gradients not clipped*", "1", *map(_show, found)]


def _show(found: Difference | None) -> str:
    return "" if found is None else ", ".join(map(_number, found))


def _number(value: float) -> str:
    return f"{value:.1e}" if value else "0"


def _answered(results: Results, alike: bool) -> Iterator[Sequence[str]]:
    keys = [key for key, workload in WORKLOADS.items() if workload.evaluation]
    titles = [f"metrics of `{WORKLOADS[key].script}`" for key in keys]
    yield ["devices", *titles, "probabilities", "other rows or labels"]
    for name, layout in LAYOUTS.items():
        found = [
            results.answered[alike, name, key]
            for key in keys
            if (alike, name, key) in results.answered
        ]
        gaps = [
            answers.probabilities
            for answers in found
            if answers.probabilities is not None
        ]
        if found:
            yield [
                layout.title,
                *(_number(answers.metrics) for answers in found),
                _number(max(gaps)) if gaps else "",
                str(sum(answers.rows for answers in found)),
            ]
    yield from _left_out(results, 2 + len(keys))


def _shares(results: Results) -> Iterator[Sequence[str]]:
    yield ["workers", "in an epoch of training", "in an evaluation"]
    for num_workers, counts in results.shares.items():
        yield [
            str(num_workers),
            *(" + ".join(map(str, numbers)) for numbers in counts),
        ]


def _left_out(results: Results, columns: int) -> Iterator[Sequence[str]]:
    for name, reason in results.left_out.items():
        title = f"{LAYOUTS[name].title}: not run, since {reason}"
        yield [title, *[""] * columns]


if __name__ == "__main__":
    cli.main(run)
