"""The program that fills table 7; for real in the slow test alone."""

import json
import subprocess
import sys

import conll_files
import fine_tuning_runs
import in_process
import pytest
from checkout import ROOT

from bert_tf.feature_tagger import CHOICES

EXAMPLES = ROOT / "examples"
NAME = "conll_feature_based"
REQUIRED = ["data_dir", "init_checkpoint", "output_dir"]


@pytest.fixture(scope="module")
def launch():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        with in_process.script(NAME, REQUIRED) as launch:
            yield launch


class Program:
    """Runs it with a run_ner.py that writes a score and trains nothing.

    Attributes:
      folder: Its output.
      commands: The flags of each call of run_ner.py, in the last run.
      breaks_at: The row whose training fails.
    """

    def __init__(self, launch, folder):
        self.folder = folder
        self.commands = []
        self.breaks_at = None
        self._launch = launch

    def run(self, *more):
        """Gives the exit status and the rows that were trained."""
        self.commands.clear()
        words = ["--data_dir=data", "--init_checkpoint=bert", *more]
        status = self._launch([*words, f"--output_dir={self.folder}"])
        return status, [row_of(flags) for flags in self.commands]

    def stand_in(self, command, check):
        """What is called instead of `subprocess.run`."""
        assert command[:2] == [sys.executable, str(ROOT / "run_ner.py")]
        pairs = (word.removeprefix("--").partition("=") for word in command[2:])
        flags = {name: value for name, _, value in pairs}
        self.commands.append(flags)
        if row_of(flags) == self.breaks_at:
            return subprocess.CompletedProcess(command, 3)
        folder = self.folder / row_of(flags)
        folder.mkdir()
        score = {"eval_f1": 0.9 + len(self.commands) / 100}
        (folder / "eval_results.json").write_text(json.dumps(score))
        return subprocess.CompletedProcess(command, 0)

    def ours(self):
        """The column of our scores."""
        lines = (self.folder / "table.md").read_text().splitlines()
        return [line.split("|")[2].strip() for line in lines[2:]]


def row_of(flags):
    return flags["output_dir"].rpartition("/")[2]


@pytest.fixture
def program(launch, tmp_path, monkeypatch):
    program = Program(launch, tmp_path / "out")
    monkeypatch.setattr(subprocess, "run", program.stand_in)
    return program


def test_the_rows_are_all_that_the_model_knows(launch):
    rows = sys.modules[NAME].ROWS
    assert list(rows) == ["fine_tuning", *CHOICES]


def test_the_whole_table(program, capsys):
    status, rows = program.run()
    assert status == 0
    assert rows == ["fine_tuning", *CHOICES]
    assert program.ours() == [f"9{n}.0" for n in range(1, 8)]
    table = (program.folder / "table.md").read_text()
    assert "| Embeddings | 92.0 | 91.0 |\n" in table
    assert "| Fine-tuning | 91.0 | 96.4 |\n" in table
    output = capsys.readouterr().out
    assert table in output
    assert output.count("\n$ ") == len(rows)


def test_each_row_has_the_flags_of_its_mode(program):
    program.run("--lstm_size=5", "--also=--max_seq_length=23")
    first, *others = program.commands
    assert "mode" not in first
    assert (first["learning_rate"], first["num_train_epochs"]) == (
        "5e-05",
        "3.0",
    )
    for flags in others:
        assert flags["mode"] == "feature_based"
        assert flags["feature_layers"] == row_of(flags)
        assert flags["lstm_size"] == "5"
        assert flags["learning_rate"] == "0.001"
    for flags in program.commands:
        assert flags["data_dir"] == "data"
        assert flags["init_checkpoint"] == "bert"
        assert flags["max_seq_length"] == "23"
        assert {"do_train", "do_eval"} <= {*flags}


def test_what_is_done_is_not_done_again(program):
    program.breaks_at = "last"
    status, rows = program.run()
    assert status == 3
    assert rows == ["fine_tuning", "embeddings", "second_to_last", "last"]
    assert program.ours() == ["91.0", "92.0", "93.0", "", "", "", ""]
    program.breaks_at = None
    assert program.run() == (0, [*CHOICES][2:])
    assert program.ours()[:4] == ["91.0", "92.0", "93.0", "91.0"]
    assert program.run() == (0, [])
    assert "" not in program.ours()


def test_some_rows(program):
    assert program.run("--row=last", "--row=sum_all") == (
        0,
        ["last", "sum_all"],
    )
    assert program.ours() == ["", "", "", "91.0", "", "", "92.0"]


def test_rows_of_earlier_commands_stay_in_the_table(program):
    program.run("--row=last")
    program.run("--row=sum_all")
    assert program.ours() == ["", "", "", "91.0", "", "", "91.0"]


def test_other_flags_are_refused(program, capsys):
    program.run("--row=last")
    capsys.readouterr()
    status, rows = program.run("--row=last", "--feature_learning_rate=0.01")
    assert (status, rows) == (1, [])
    line = in_process.the_error(capsys, NAME)
    assert "name another --output_dir" in line
    assert "--learning_rate=0.01" in line
    assert program.ours()[3] == "91.0"


@pytest.mark.slow
def test_a_row_for_real(tmp_path):
    data = conll_files.write(tmp_path / "data")
    start = fine_tuning_runs.write_release(tmp_path / "start", ("0", "1"))
    done = subprocess.run(
        [
            sys.executable,
            str(EXAMPLES / f"{NAME}.py"),
            f"--data_dir={data}",
            f"--init_checkpoint={start}",
            f"--output_dir={tmp_path / 'out'}",
            "--row=last",
            "--lstm_size=7",
            f"--also=--max_seq_length={fine_tuning_runs.LENGTH}",
            "--also=--train_batch_size=4",
            "--also=--jit_compile=false",
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "out" / "last.json").read_text())
    assert 0 <= record["eval_f1"] <= 1
    shown = f"{100 * record['eval_f1']:.1f}"
    assert f"| Last layer | {shown} | 94.9 |" in done.stdout
