"""The programs in examples/paper, with scripts that train nothing.

No test by itself.
"""

import contextlib
import functools
import pathlib
import sys
from unittest import mock

import conll_files
import in_process
import module_folders
import sentence_files
from checkout import ROOT

PAPER = ROOT / "examples" / "paper"


importable = functools.partial(module_folders.importable, PAPER)


@contextlib.contextmanager
def program(name, required=()):
    """A program, to be launched in this process."""
    with importable(), in_process.script(name, required) as launch:
        yield launch


def write_inputs(folder):
    """Text, GLUE's MRPC and SST-2, SQuAD and CoNLL; gives flags for them."""
    folder.mkdir()
    text = folder / "text.txt"
    words = sentence_files.FILLERS + sentence_files.TELLING
    sentences = [" ".join(words[n % 7 : n % 7 + 11]) for n in range(120)]
    documents = ["\n".join(sentences[n : n + 6]) for n in range(0, 120, 6)]
    text.write_text("\n\n".join(documents) + "\n")
    for name in ("MRPC", "SST-2"):
        (folder / name).mkdir()
        rows = [f"{words[n]} good\t1\n{words[n]} bad\t0" for n in range(10)]
        for split in ("train", "dev"):
            path = folder / name / f"{split}.tsv"
            path.write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    conll_files.write(folder / "conll")
    return {
        "input_file": text,
        "data_dir": folder,
        "conll_dir": folder / "conll",
    }


@contextlib.contextmanager
def no_scripts():
    """Gives a `Scripts` and has the programs call that."""
    scripts = Scripts()
    with (
        importable() as load,
        mock.patch.object(load("runs"), "status_of", scripts),
    ):
        yield scripts


class Scripts:
    """What is called instead of `status_of`; flags have to be the script's.

    Attributes:
      commands: Script and flags of each call that went well.
      score: From script and flags to `eval_results.txt`, a dict.
      fails_at: How many calls go well before one fails; None for all.
    """

    def __init__(self):
        self.commands = []
        self.score = lambda script, given: {"eval_accuracy": 0.5}
        self.fails_at = None

    def __call__(self, command, log):
        python, path, *words = command
        assert python == sys.executable
        script = pathlib.Path(path)
        assert script.parent == ROOT
        in_process.parse(in_process.job_of(script.stem), words)
        pairs = (word.removeprefix("--").partition("=") for word in words)
        given = {name: value for name, _, value in pairs}
        if len(self.commands) == self.fails_at:
            self.fails_at = None
            log.write("a line\nwhat was wrong\n")
            return 3
        self.commands.append((script.name, given))
        if "output_dir" in given:
            found = self.score(script.name, given)
            lines = [f"{name} = {value}\n" for name, value in found.items()]
            folder = pathlib.Path(given["output_dir"])
            (folder / "eval_results.txt").write_text("".join(lines))
        return 0

    def of(self, script):
        """The flags of all calls of a script."""
        return [given for name, given in self.commands if name == script]


def words(given):
    """A command line."""
    return [f"--{name}={value}" for name, value in given.items()]
