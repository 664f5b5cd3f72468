"""The programs in examples/paper, with jobs that train nothing.

Not a test.
"""

import contextlib
import functools
import pathlib
from unittest import mock

import conll_files
import in_process
import module_folders
import sentence_files
from checkout import ROOT

PAPER = ROOT / "examples" / "paper"

importable = functools.partial(module_folders.importable, PAPER)


@contextlib.contextmanager
def program(name):
    """Yields a function that runs a program with a command line."""
    with importable(), in_process.script(name) as launch:
        yield launch


def write_inputs(folder):
    """Writes text, MRPC, SST-2 and CoNLL; returns flags for them."""
    folder.mkdir()
    text = folder / "text.txt"
    words = sentence_files.FILLERS + sentence_files.TELLING
    sentences = [" ".join(words[n % 7 : n % 7 + 11]) for n in range(120)]
    documents = ["\n".join(sentences[n : n + 6]) for n in range(0, 120, 6)]
    text.write_text("\n\n".join(documents) + "\n")
    for name in ("MRPC", "SST-2"):
        (folder / name).mkdir()
        rows = [
            f"{words[n % 10]} good\t1\n{words[n % 7]} bad\t0" for n in range(20)
        ]
        table = "\n".join(["sentence\tlabel", *rows]) + "\n"
        for split in ("train", "dev"):
            (folder / name / f"{split}.tsv").write_text(table)
    conll_files.write(folder / "conll")
    data = {"data_dir": folder, "conll_dir": folder / "conll"}
    return {"input_file": text, **data}


@contextlib.contextmanager
def no_jobs():
    """Yields a `Jobs`, which the programs call instead of `runs.run_job`."""
    jobs = Jobs()
    with (
        importable() as load,
        mock.patch.object(load("runs"), "run_job", jobs),
    ):
        yield jobs


class Jobs:
    """Replaces `run_job`; checks the flags of the scripts."""

    def __init__(self):
        # The script and the flags of each successful call.
        self.commands = []
        # Returns the metrics, given a script and its flags.
        self.score = lambda script, given: {"eval_accuracy": 0.5}
        # The number of calls before one fails, if any does.
        self.fails_at = None

    def __call__(self, script, words, log):
        job = in_process.job_of(pathlib.Path(script).stem)
        in_process.parse(job, words)
        pairs = (word.removeprefix("--").partition("=") for word in words)
        given = {name: value for name, _, value in pairs}
        if len(self.commands) == self.fails_at:
            self.fails_at = None
            log.write("a line\nwhat was wrong\n")
            return "InputError: what was wrong"
        self.commands.append((script, given))
        if "output_dir" in given:
            found = self.score(script, given)
            lines = [f"{name} = {value}\n" for name, value in found.items()]
            folder = pathlib.Path(given["output_dir"])
            (folder / "eval_results.txt").write_text("".join(lines))
        return ""

    def of(self, script):
        """Returns the flags of all calls of a script."""
        return [given for name, given in self.commands if name == script]


def words(given):
    """Returns a command line."""
    return [f"--{name}={value}" for name, value in given.items()]
