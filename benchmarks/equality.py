"""From one seed the same weights, whatever devices and hosts share the work.

    python benchmarks/equality.py --page=docs/scale.md

runs scripts as users do: on one device; on two and four replicas; as two worker
processes, which share --output_dir; on two hosts, which are network namespaces
with a cable between them and have folders of their own. Each trains for 30
steps, with a batch that is accumulated in one, two and three parts. The last
checkpoints are compared with that of one device which accumulates nothing.
Then all of them evaluate, and predict, with one and the same model: with the
same flags, and with as many examples on each device as there are on the one.

It takes twenty minutes on two cores. Hosts take Linux, root and `ip`;
where they cannot be made the section says why.
"""

# Before anything that imports TensorFlow.
import bert_tf.quiet_tensorflow  # noqa: F401

# isort: split
import contextlib
import dataclasses
import importlib.metadata
import itertools
import pathlib
import tempfile
from collections.abc import Callable, Mapping

from absl import flags
from equality_results import (
    REFERENCE,
    Results,
    compare_answers,
    difference,
    read,
    require_apart,
    section,
)
from layouts import LAYOUTS, Layout, run
from measured import machine
from pages import write_section
from small_tasks import (
    CONFIG,
    LENGTH,
    PREDICTIONS,
    write_classification,
    write_pretraining,
)
from two_hosts import Unavailable
from worker_shares import Shares, shares

from bert_tf import cli, files
from bert_tf.data.schema import pretraining_schema

FLAGS = flags.FLAGS
STEPS = 30
PARTS = (1, 2, 3)
# Numbers of workers whose shares of the data are counted.
WORKERS = (2, 3, 4)

flags.DEFINE_string("page", None, "The page to write to; none: print alone.")
flags.DEFINE_string(
    "folder", None, "A new folder to keep all runs in; none: keep nothing."
)


@dataclasses.dataclass(frozen=True)
class Workload:
    """A script and what it is given.

    Attributes:
      script: Its path below the root of the project.
      write: Writes its data into a folder; gives the flags that name it.
      training: Flags with which it trains for STEPS steps.
      evaluation: Flags with which it asks a model; None if it cannot.
      alike: More flags, with which a batch of one device is computed as it
        would be as a part of a larger one.
    """

    script: str
    write: Callable[[pathlib.Path], Mapping[str, object]]
    training: Mapping[str, object]
    evaluation: Mapping[str, object] | None = None
    alike: Mapping[str, object] = dataclasses.field(default_factory=dict)


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
        # Of 31 examples: int(31 / 24 * 23.25) steps.
        {
            **_OPTIMIZER,
            "do_train": True,
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
        # Not as long as the longest text of a batch.
        {"padding": "max_length"},
    ),
    "ragged": Workload(
        "benchmarks/ragged_epochs.py", lambda folder: {}, _STEPS
    ),
}


class Runs:
    """Runs workloads in folders below one.

    Args:
      folder: Where data and outputs go.
      workloads: By their key.
    """

    def __init__(self, folder: pathlib.Path, workloads: Mapping[str, Workload]):
        self._folder = folder
        self._workloads = workloads
        self._data: dict[str, Mapping[str, object]] = {}
        for key, workload in workloads.items():
            (folder / key).mkdir(parents=True)
            self._data[key] = workload.write(folder / key)

    def train(
        self, key: str, layout: Layout, parts: int = 1, **changes: object
    ) -> pathlib.Path:
        """Trains; gives the chief's folder."""
        workload = self._workloads[key]
        flags = {
            **self._data[key],
            **workload.training,
            "gradient_accumulation_steps": parts,
            **changes,
        }
        name = "-".join([layout.title, str(parts), *changes]).replace(" ", "_")
        place = self._folder / key / name
        return run(layout, workload.script, flags, place)

    def shares(self, key: str, num_workers: int) -> Shares:
        """Which examples of a workload with records each worker reads."""
        train_files, eval_files = (
            files.expand(str(self._data[key][name]), name)
            for name in ("input_file", "eval_input_file")
        )
        schema = pretraining_schema(LENGTH, PREDICTIONS)
        return shares(train_files, eval_files, schema, num_workers)

    def answer(
        self, key: str, layout: Layout, model: pathlib.Path, alike: bool
    ) -> pathlib.Path:
        """Evaluates, and predicts if it can; gives the chief's folder.

        Args:
          key: Of the workload.
          layout: On what.
          model: The folder of a training.
          alike: Whether a batch has so many examples for each device, and not
            for all of them together.
        """
        workload = self._workloads[key]
        flags = {
            **self._data[key],
            **(workload.evaluation or {}),
            "init_checkpoint": model / "release",
            "jit_compile": "false",
        }
        if alike:
            flags |= workload.alike
            for name in flags:
                if name.endswith("_batch_size"):
                    flags[name] *= layout.replicas
        name = f"{layout.title}-{'alike' if alike else 'answers'}"
        place = self._folder / key / name.replace(" ", "_")
        return run(layout, workload.script, flags, place)


def measure(
    runs: Runs,
    workloads: Mapping[str, Workload],
    layouts: Mapping[str, Layout],
    tell: Callable[[str], None],
) -> Results:
    """Runs everything on every layout, and compares it with one device."""
    results = Results()
    for num_workers in WORKERS:
        results.shares.append(runs.shares("pretraining", num_workers))
    for key, workload in workloads.items():
        model = measure_training(runs, key, layouts, results, tell)
        if workload.evaluation is not None:
            measure_answers(runs, key, model, layouts, results, tell)
    return results


def measure_training(
    runs: Runs,
    key: str,
    layouts: Mapping[str, Layout],
    results: Results,
    tell: Callable[[str], None],
) -> pathlib.Path:
    """Trains a workload everywhere; gives the folder of the reference.

    Raises:
      ValueError: Its gradients are too short to be clipped.
    """
    one = layouts[REFERENCE[0]]
    model = runs.train(key, one)
    expected = read(model, STEPS)
    free = difference(
        read(runs.train(key, one, max_grad_norm=0), STEPS), expected
    )
    tell(f"{key}, not clipped: {free}")
    require_apart(free)
    results.without_clipping[key] = free
    for name, parts in itertools.product(layouts, PARTS):
        if (name, parts) == REFERENCE or name in results.left_out:
            continue
        try:
            folder = runs.train(key, layouts[name], parts)
        except Unavailable as error:
            results.left_out[name] = str(error)
            continue
        found = difference(read(folder, STEPS), expected)
        results.trained[name, parts, key] = found
        tell(f"{key}, {name}, {parts} part(s): {found}")
    return model


def measure_answers(
    runs: Runs,
    key: str,
    model: pathlib.Path,
    layouts: Mapping[str, Layout],
    results: Results,
    tell: Callable[[str], None],
) -> None:
    """Asks a workload's model everywhere."""
    reference = REFERENCE[0]
    for alike in (False, True):
        expected = runs.answer(key, layouts[reference], model, alike)
        for name in layouts.keys() - {reference, *results.left_out}:
            folder = runs.answer(key, layouts[name], model, alike)
            found = compare_answers(folder, expected, alike)
            results.answered[alike][name, key] = found
            tell(f"{key}, {name}, {'alike' if alike else 'shared'}: {found}")


def circumstances() -> str:
    """What the numbers depend on, in Markdown."""
    values = machine()
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}"
        for name in ("tensorflow", "keras")
    )
    return f"""\
A BERT of {CONFIG["num_hidden_layers"]} layers of {CONFIG["hidden_size"]}, no
dropout (the two rates of `bert_config.json` are 0, and `--head_dropout=0` for
the classifier), {STEPS} steps of {_OPTIMIZER["train_batch_size"]} examples, a
rate of
{_OPTIMIZER["learning_rate"]:g}, gradients clipped to a norm of
{_OPTIMIZER["max_grad_norm"]} (those of the classifier, a tenth as long, to
{WORKLOADS["classification"].training["max_grad_norm"]}), one seed. The
scripts have 31 examples, in batches that go on into the next epoch. The last
column is `benchmarks/ragged_epochs.py`: an epoch ends in a batch of 5, of which
the second of two replicas, workers or hosts gets none, and of four replicas
three get none. Replicas are CPU devices; workers are processes of one machine
with one --output_dir; hosts are network namespaces joined by a veth pair, each
with a folder of its own.

- {values["processor"]}; {values["cores"]} cores; {values["system"]}; {versions}
- `python benchmarks/equality.py --page=docs/scale.md`"""


def main() -> None:
    with contextlib.ExitStack() as stack:
        folder = FLAGS.folder or stack.enter_context(
            tempfile.TemporaryDirectory()
        )
        runs = Runs(pathlib.Path(folder), WORKLOADS)
        results = measure(
            runs, WORKLOADS, LAYOUTS, lambda line: print(line, flush=True)
        )
    scripts = {
        key: f"`{workload.script}`" for key, workload in WORKLOADS.items()
    }
    text = f"{circumstances()}\n\n{section(results, LAYOUTS, scripts)}"
    print(text)
    if FLAGS.page:
        write_section(FLAGS.page, "equalities", text)


if __name__ == "__main__":
    cli.run_program(main)
