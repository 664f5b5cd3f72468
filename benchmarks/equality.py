"""From one seed the same weights, whatever devices and hosts share the work.

    python benchmarks/equality.py --page=docs/scale.md

runs scripts as users do: on one device; on two and four replicas; as two worker
processes, which share --output_dir; on two hosts, which are network namespaces
with a cable between them and have folders of their own. Each trains for 30
steps, with a batch that is accumulated in one, two and three parts. The last
checkpoints are compared with that of one device which accumulates nothing.
Then all of them evaluate, and predict, with one and the same model.

It takes a quarter of an hour on two cores. Hosts take Linux, root and `ip`;
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
    section,
)
from layouts import LAYOUTS, Layout, run
from measured import machine
from pages import write_section
from small_tasks import CONFIG, write_classification, write_pretraining
from two_hosts import Unavailable

from bert_tf import flags as bert_flags

FLAGS = flags.FLAGS
STEPS = 30
PARTS = (1, 2, 3)

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
    """

    script: str
    write: Callable[[pathlib.Path], Mapping[str, object]]
    training: Mapping[str, object]
    evaluation: Mapping[str, object] | None = None


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
        {**_OPTIMIZER, "do_train": True, "num_train_epochs": 23.25},
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

    def answer(
        self, key: str, layout: Layout, model: pathlib.Path
    ) -> pathlib.Path:
        """Evaluates, and predicts if it can; gives the chief's folder."""
        workload = self._workloads[key]
        flags = {
            **self._data[key],
            **(workload.evaluation or {}),
            "init_checkpoint": model / "release",
            "jit_compile": "false",
        }
        place = self._folder / key / f"{layout.title}-answers".replace(" ", "_")
        return run(layout, workload.script, flags, place)


def measure(
    runs: Runs,
    workloads: Mapping[str, Workload],
    layouts: Mapping[str, Layout],
    tell: Callable[[str], None],
) -> Results:
    """Runs everything on every layout, and compares it with one device."""
    results = Results()
    reference, _ = REFERENCE
    one = layouts[reference]
    for key, workload in workloads.items():
        model = runs.train(key, one)
        expected = read(model, STEPS)
        free = read(runs.train(key, one, max_grad_norm=0.0), STEPS)
        results.without_clipping[key] = difference(free, expected)
        tell(f"{key}, not clipped: {results.without_clipping[key]}")
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
        if workload.evaluation is None:
            continue
        answers = runs.answer(key, one, model)
        for name in sorted(layouts.keys() - {reference, *results.left_out}):
            folder = runs.answer(key, layouts[name], model)
            results.answered[name, key] = compare_answers(folder, answers)
            tell(f"{key}, {name}: {results.answered[name, key]}")
    return results


def circumstances() -> str:
    """What the numbers depend on, in Markdown."""
    values = machine()
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}"
        for name in ("tensorflow", "keras")
    )
    return f"""\
A BERT of {CONFIG["num_hidden_layers"]} layers of {CONFIG["hidden_size"]}, no
dropout, {STEPS} steps of {_OPTIMIZER["train_batch_size"]} examples, a rate of
{_OPTIMIZER["learning_rate"]:g}, gradients clipped to a norm of
{_OPTIMIZER["max_grad_norm"]}, one seed. The scripts have 31 examples, in
batches that go on into the next epoch. The last column is
`benchmarks/ragged_epochs.py`: an epoch ends in a batch of 5, of which the
second of two replicas, workers or hosts gets none, and of four replicas three
get none. Replicas are CPU devices; workers are processes of one
machine with one --output_dir; hosts are network namespaces joined by a veth
pair, each with a folder of its own.

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
    bert_flags.run(main)
