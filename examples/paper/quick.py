"""Tables 5 to 8 of the paper in about an hour on two cores.

    python examples/paper/quick.py --text_dir=text --glue_dir=glue_data \\
        --conll_dir=conll2003 --output_dir=quick

or `make paper-quick`. Fills the tables with fixed settings, two programs at a
time. summary.md says for each comparison of two rows in the paper whether our
scores differ in the same direction, with the p-value of Welch's test over the
seeds. It also says if a difference is not significant, or if the paper's table
lacks the task. The last file of the text is held out for table 6.

Rerun a stopped command to continue; finished runs are skipped.
"""

import contextlib
import dataclasses
import glob
import os
import pathlib
import re
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

import plan
from runs import PYTHON

from bert_tf import cli
from bert_tf.base import files, signals
from bert_tf.base.options import Options, option
from bert_tf.errors import InputError


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuickOptions(Options):
    """Options of this program."""

    text_dir: str = option(
        "Folder of two or more files *.txt to pre-train on, one sentence per "
        "line with blank lines between documents."
    )
    glue_dir: str = option("Folder of GLUE's folder SST-2.")
    conll_dir: str = option("Folder of CoNLL-2003.")
    output_dir: str = option("Folder of the tables, the runs and the summary.")
    fraction: float = option(
        "Fraction of the steps and examples, to check that all programs run. "
        "Below 1 there are two seeds instead of three.",
        default=1.0,
        at_least=0.0,
        at_most=1.0,
    )


SIZE = "L-4_H-128_A-2"
# Program -> flags that only this program gets; the slowest programs first.
TABLES = {
    "ablation_masking": {
        "model_size": SIZE,
        "lstm_size": 64,
        "rows": "80/10/10,100/0/0,0/0/100",
    },
    "ablation_tasks": {
        "model_size": "L-2_H-128_A-2",
        "max_seq_length": 64,
        "first_share": 0.7,
        "tasks": "SST-2",
        # Enough for two layers; four layers that see only [MASK] need more.
        "warmup_proportion": 0.1,
        "fine_tuning_learning_rate": 5e-4,
    },
    "ablation_size": {
        "tasks": "SST-2",
        "rows": "L-3_H-768_A-12,L-6_H-768_A-3,L-12_H-1024_A-16",
    },
    "feature_based": {
        "do_lower_case": "true",
        "model_size": SIZE,
        "lstm_size": 64,
    },
}
STEPS, EXAMPLES = 3000, 15_000
FLAGS = {
    "vocab_size": 2000,
    "dupe_factor": 1,
    "max_seq_length": 32,
    "train_batch_size": 64,
}
# A comparison of two rows in a table's file.
CLAIM = re.compile(r"- (.* against .*?: .*) \((.*)\)")
UNRESOLVED = (
    "not significant",
    "not tested",
    "no difference here",
    "no number",
    "each seed gave",
    "learned nothing",
)


def commands(config: QuickOptions) -> dict[str, dict[str, object]]:
    """Returns the flags of each program.

    Raises:
      InputError: A file of the inputs is missing.
    """
    texts = sorted(glob.glob(os.path.join(config.text_dir, "*.txt")))
    if len(texts) < 2:
        raise InputError(
            f"--text_dir={config.text_dir} must have two or more files *.txt; "
            f"found {len(texts)}. examples/paper/debian_text.py makes some."
        )
    sst = os.path.join(config.glue_dir, "SST-2")
    for folder, wanted in (
        (sst, {"train.tsv": (), "dev.tsv": ()}),
        (config.conll_dir, plan.CONLL_FILES),
    ):
        _, missing = plan.find_inputs(folder, wanted)
        if missing:
            raise InputError(
                f"{missing} does not exist. Pass the folders of your data: "
                "--glue_dir and --conll_dir, or make paper-quick GLUE=... "
                "CONLL=..."
            )
    shared = FLAGS | {
        "input_file": ",".join(texts[:-1]),
        "num_train_steps": max(1, round(config.fraction * STEPS)),
        "max_examples": max(64, round(config.fraction * EXAMPLES)),
        "num_seeds": 3 if config.fraction == 1 else 2,
        "conll_dir": config.conll_dir,
        "output_dir": config.output_dir,
    }
    glue = {"data_dir": config.glue_dir}
    only = {
        "ablation_size": glue | {"held_out_file": texts[-1]},
        "ablation_tasks": glue,
    }
    return {
        name: shared | only.get(name, {}) | given
        for name, given in TABLES.items()
    }


def launch(
    name: str, given: dict[str, object], folder: str
) -> subprocess.Popen:
    """Starts a program on one core; its output goes to a file in the folder."""
    program = pathlib.Path(__file__).with_name(f"{name}.py")
    words = [f"--{flag}={value}" for flag, value in given.items()]
    log = log_path(name, folder)
    print(f"{name}: started; tail -f {log}", flush=True)
    threads = dict.fromkeys(
        ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "1"
    )
    with open(log, "a", encoding="utf-8") as output:
        return subprocess.Popen(
            [PYTHON, str(program), *words],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **threads},
            process_group=0,
        )


def log_path(name: str, folder: str) -> str:
    return os.path.join(folder, f"{name}.log")


@contextlib.contextmanager
def ending(processes: Iterable[subprocess.Popen]) -> Iterator[None]:
    """Passes a signal on to child processes; waits until all of them end."""
    try:
        yield
    except (KeyboardInterrupt, signals.Stopped) as stop:
        for process in processes:
            process.send_signal(getattr(stop, "number", signal.SIGINT))
        raise
    finally:
        # `timeout` sends a signal twice.
        with signals.deferred():
            for process in processes:
                process.wait()


def launch_all(
    tables: Mapping[str, dict[str, object]], folder: str
) -> list[str]:
    """Runs the programs, two at a time; returns the names of failed ones."""
    waiting, failed = [*tables], []
    running: dict[str, subprocess.Popen] = {}
    with ending(running.values()):
        while waiting or running:
            while waiting and len(running) < 2:
                name = waiting.pop(0)
                running[name] = launch(name, tables[name], folder)
            time.sleep(0.2)
            for name, process in [*running.items()]:
                status = process.poll()
                if status is None:
                    continue
                del running[name]
                ended = "done"
                if status:
                    failed.append(name)
                    ended = f"failed, see {log_path(name, folder)}"
                print(f"{name}: {ended}", flush=True)
    return failed


def summary(folder: str) -> str:
    """Returns a row for each comparison of the tables that exist."""
    lines = ["| Claim | The paper and here | Result |", "| --- | --- | --- |"]
    for name in TABLES:
        path = os.path.join(folder, f"{name}.md")
        if not files.exists(path):
            lines.append(f"| {name} |  | not filled yet |")
            continue
        text = files.read_text(path)
        lines.append(f"| **{text.partition(':')[0]}** |  |  |")
        for claim, found in CLAIM.findall(text):
            column, rows, numbers = claim.split(": ", 2)
            cells = f"{column}: {rows}", numbers, result(found)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def result(found: str) -> str:
    """Returns the result of a comparison in a table program's words."""
    direction, _, chance = found.partition("; ")
    if not any(words in found for words in UNRESOLVED):
        return f"{direction}, {chance}" if chance else direction
    p = re.search(r"p = [^,]*", chance)
    return f"not resolved ({p[0] if p else chance or direction})"


def run(config: QuickOptions) -> None:
    """Fills the tables and writes the summary.

    Raises:
      InputError: A file is missing, or a program has failed.
    """
    tables = commands(config)
    folder = config.output_dir
    start = time.monotonic()
    files.makedirs(folder)
    failed = launch_all(tables, folder)
    path = os.path.join(folder, "summary.md")
    text = summary(folder)
    files.write_text(path, text)
    minutes = (time.monotonic() - start) / 60
    print(f"\n{text}\nIt is in {path}. Took {minutes:.1f} minutes.")
    if failed:
        raise failure(failed, folder)


def failure(names: Sequence[str], folder: str) -> InputError:
    return InputError(
        f"{', '.join(names)} failed. Fix the cause, which the log in {folder} "
        "states, and rerun the command."
    )


if __name__ == "__main__":
    cli.main(run)
