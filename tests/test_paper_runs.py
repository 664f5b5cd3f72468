"""Runs: what makes one another, what is done before, what is not done again."""

import fcntl
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import types

import absl.flags
import paper_programs
import pytest
from checkout import ROOT

from bert_tf.errors import InputError
from bert_tf.version import __version__


@pytest.fixture(scope="module")
def runs():
    with paper_programs.importable() as load:
        yield load("runs")


@pytest.fixture
def scripts(runs):
    with paper_programs.no_scripts() as scripts:
        yield scripts


def chain(runs, text, steps=7):
    """A vocabulary, and a model that takes it."""
    source = runs.Source.of(str(text))
    vocab = runs.Run(
        "words", "create_vocab.py", {"input_file": source}, "vocab.txt"
    )
    given = {
        "vocab_file": runs.Made(vocab, "vocab.txt"),
        "num_train_steps": steps,
        "do_train": True,
    }
    return vocab, runs.Run("model", "run_pretraining.py", given)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("a b c\n")
    return path


def test_a_command(runs, text, tmp_path):
    vocab, model = chain(runs, text)
    folder = runs.Folder("out")
    assert folder.command(vocab) == [
        "create_vocab.py",
        f"--input_file={text}",
        f"--output_file=out/runs/{vocab.label}/vocab.txt",
    ]
    assert folder.command(model) == [
        "run_pretraining.py",
        f"--vocab_file=out/runs/{vocab.label}/vocab.txt",
        "--num_train_steps=7",
        "--do_train",
        f"--output_dir=out/runs/{model.label}",
    ]


def test_what_makes_another_run(runs, text, tmp_path):
    vocab, model = chain(runs, text)
    assert chain(runs, text) == (vocab, model)
    assert chain(runs, text)[1].label == model.label
    longer = chain(runs, text, steps=8)
    assert longer[0].label == vocab.label
    assert longer[1].label != model.label
    # Elsewhere it is the same text.
    elsewhere = tmp_path / "moved" / "text.txt"
    elsewhere.parent.mkdir()
    text.rename(elsewhere)
    assert chain(runs, elsewhere)[1].label == model.label
    # Another text makes all that comes from it anew.
    elsewhere.write_text("d e f\n")
    os.utime(elsewhere, ns=(1, 1))
    others = chain(runs, elsewhere)
    assert others[0].label != vocab.label
    assert others[1].label != model.label


def test_files_of_a_folder_and_of_globs_count(runs, tmp_path):
    empty = runs.Source.of(str(tmp_path))
    (tmp_path / "a.tsv").write_text("1")
    (tmp_path / "b.tsv").write_text("22")
    sizes = [size for _, size, _ in runs.Source.of(str(tmp_path)).identity]
    assert sizes == [1, 2]
    assert empty.identity == (str(tmp_path),)
    globs = runs.Source.of(f"{tmp_path}/a*,{tmp_path}/[b-z]*")
    assert globs.identity == runs.Source.of(str(tmp_path)).identity


def test_folders_of_runs_keep_their_names(runs, text):
    """Or runs that were done would be done again."""
    os.utime(text, ns=(1, 1))
    vocab, model = chain(runs, text)
    assert (vocab.label, model.label) == ("words-ef14c4e6", "model-df0dd8a5")
    second = runs.Run(
        "model", "run_pretraining.py", {"num_train_steps": 9}, continues=model
    )
    assert second.label == "model-bad429c8"


def test_a_list_may_have_blanks(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt", "else.txt"):
        pathlib.Path(name).write_text(name)
    both = runs.Source.of("a.txt,b.txt").identity
    assert len(both) == 2
    assert runs.Source.of("a.txt, b.txt").identity == both
    assert runs.Source.of(" b.txt , a.txt,").identity == both
    assert len(runs.Source.of("a.txt,").identity) == 1


def test_a_checkpoint_is_its_files(runs, tmp_path):
    """Of a TF1 checkpoint, a flag names what their names begin with."""
    for name in "ab":
        (tmp_path / name).mkdir()
        for ending in ("index", "data-00000-of-00001"):
            path = tmp_path / name / f"bert_model.ckpt.{ending}"
            path.write_text(name)
            os.utime(path, ns=(1, 1))
        (tmp_path / name / "vocab.txt").write_text("other")
    a, b = (str(tmp_path / name / "bert_model.ckpt") for name in "ab")
    assert [name for name, *_ in runs.Source.of(a).identity] == [
        "bert_model.ckpt.data-00000-of-00001",
        "bert_model.ckpt.index",
    ]
    # The same, elsewhere.
    assert runs.Source.of(a).identity == runs.Source.of(b).identity
    os.utime(f"{b}.index", ns=(2, 2))
    assert runs.Source.of(a).identity != runs.Source.of(b).identity
    # A name that is there is no beginning of others.
    pathlib.Path(a).write_text("all in one")
    assert len(runs.Source.of(a).identity) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("hf://owner/a", "hf://owner/b"),
        ("gs://bucket/a*.txt", "gs://bucket/b*.txt"),
        ("absent/a", "absent/b"),
        ("{text},gs://a", "{text},gs://b"),
        ("{text},gs://a", "{text}"),
    ],
)
def test_what_is_not_here_stands_for_itself(runs, text, one, other):
    models = [
        chain(runs, pattern.format(text=text))[1] for pattern in (one, other)
    ]
    assert models[0].label != models[1].label


def test_brackets_of_a_name_are_no_glob(runs, tmp_path):
    path = tmp_path / "a[1].txt"
    path.write_text("123")
    [(name, size, _)] = runs.Source.of(str(path)).identity
    assert (name, size) == ("a[1].txt", 3)


def test_only_sources_have_an_identity(runs):
    class Size(str):
        identity = "not for a digest"

    def label(size):
        return runs.Run("a", "run_ner.py", {"model_size": size}).label

    assert label(Size("base")) == label("base")


def test_what_is_needed_is_done_before_and_once(runs, scripts, text, tmp_path):
    vocab, model = chain(runs, text)
    other = chain(runs, text, steps=8)[1]
    folder = runs.Folder(str(tmp_path / "out"))
    assert [*folder.do([model, other])] == [vocab, model, other]
    names = [name for name, _ in scripts.commands]
    assert names == ["create_vocab.py", *["run_pretraining.py"] * 2]
    record = folder.record(model)
    assert record["command"] == folder.command(model)
    assert record["bert_tf"] == __version__
    assert record["seconds"] >= 0


def test_the_scripts_of_these_tests_have_the_flags_of_the_real_ones(
    runs, scripts, text, tmp_path
):
    folder = runs.Folder(str(tmp_path / "out"))
    vocab, model = chain(runs, text)
    for name, value in (("nodo_lower_case", True), ("num_train_step", 7)):
        renamed = model._replace(flags={**model.flags, name: value})
        with pytest.raises(absl.flags.Error, match=f"'{name}'"):
            [*folder.do([renamed])]
    right = model._replace(flags={**model.flags, "nonext_sentence": True})
    assert [*folder.do([right])] == [vocab, right]


def test_what_is_done_is_not_done_again(runs, scripts, text, tmp_path, capsys):
    vocab, model = chain(runs, text)
    folder = runs.Folder(str(tmp_path / "out"))
    scripts.fails_at = 1
    with pytest.raises(InputError) as caught:
        [*folder.do([model])]
    message = str(caught.value)
    assert message.endswith(
        f"{model.label}: exit status 3, and {folder.log(model)} ends with: "
        "what was wrong"
    )
    assert folder.record(vocab) is not None
    assert folder.record(model) is None
    capsys.readouterr()
    assert [*folder.do([model])] == [vocab, model]
    assert [name for name, _ in scripts.commands] == [
        "create_vocab.py",
        "run_pretraining.py",
    ]
    output = capsys.readouterr().out
    assert "2 runs: 1 done before, 1 to do" in output
    assert f"[1/1] $ {folder.shown(model)}\n  took " in output
    assert [*folder.do([model])] == [vocab, model]
    assert len(scripts.commands) == 2


def test_a_second_phase_goes_on_in_the_folder_of_the_first(
    runs, scripts, text, tmp_path
):
    _, first = chain(runs, text)
    second = runs.Run(
        "model", "run_pretraining.py", {"num_train_steps": 9}, continues=first
    )
    folder = runs.Folder(str(tmp_path / "out"))
    assert folder.place(second) == folder.place(first)
    assert second.label != first.label
    assert [*folder.do([second])][-2:] == [first, second]
    assert len(scripts.commands) == 3
    third = second._replace(continues=second)
    assert folder.place(third) == folder.place(first)
    assert folder.log(third) == folder.log(first)
    assert third.label != second.label


def test_what_does_not_need_a_failed_run_is_done(
    runs, scripts, text, tmp_path, capsys
):
    vocab, bad = chain(runs, text)
    after = runs.Run(
        "after",
        "run_ner.py",
        {"init_checkpoint": runs.Made(bad, "release")},
    )
    last = after._replace(continues=after)
    good = chain(runs, text, steps=8)[1]
    folder = runs.Folder(str(tmp_path / "out"))
    scripts.fails_at = 1
    done = []
    with pytest.raises(InputError) as caught:
        done.extend(folder.do([bad, after, last, good]))
    assert done == [vocab, good]
    assert "1 that did not, and 2 left out that need them" in str(caught.value)
    names = [name for name, _ in scripts.commands]
    assert names == ["create_vocab.py", "run_pretraining.py"]
    assert f"  failed after 0.0 s: {bad.label}: " in capsys.readouterr().out
    assert folder.record(good) is not None
    assert [run for run in (bad, after, last) if folder.record(run)] == []
    assert [*folder.do([bad, after, last, good])] == [
        *(vocab, bad, after, last, good),
    ]
    assert len(scripts.commands) == 5


def test_seconds_are_those_of_all_attempts(runs, text, tmp_path, monkeypatch):
    ends = [KeyboardInterrupt(), 3, 0]
    clock = iter([0, 10, 100, 120, 200, 240])
    monkeypatch.setattr(
        runs, "time", types.SimpleNamespace(perf_counter=clock.__next__)
    )

    def attempt(command, log):
        end = ends.pop(0)
        if isinstance(end, BaseException):
            raise end
        return end

    monkeypatch.setattr(runs, "status_of", attempt)
    vocab, _ = chain(runs, text)
    folder = runs.Folder(str(tmp_path / "out"))
    for stop in (KeyboardInterrupt, InputError):
        with pytest.raises(stop):
            [*folder.do([vocab])]
        assert folder.record(vocab) is None
    assert [*folder.do([vocab])] == [vocab]
    assert folder.record(vocab)["seconds"] == 70


def test_what_another_program_does_is_left_to_it(runs, scripts, text, tmp_path):
    _, model = chain(runs, text)
    folder = runs.Folder(str(tmp_path / "out"))
    os.makedirs(folder.place(model))
    with open(folder.log(model), "a") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        with pytest.raises(InputError) as caught:
            [*folder.do([model])]
    message = str(caught.value)
    assert f"Process {os.getpid()} is writing to {folder.log(model)}" in message
    assert [name for name, _ in scripts.commands] == ["create_vocab.py"]
    assert folder.record(model) is None


def test_what_another_program_has_done_meanwhile_is_done(
    runs, scripts, text, tmp_path, capsys
):
    vocab, model = chain(runs, text)
    folder = runs.Folder(str(tmp_path / "out"))
    slow = folder.do([model])
    assert next(slow) == vocab
    assert [*folder.do([model])] == [vocab, model]
    capsys.readouterr()
    assert [*slow] == [model]
    assert "was done by another program meanwhile" in capsys.readouterr().out
    assert len(scripts.commands) == 2


# It saves for a second when it is told to stop, and gives up at once when it is
# told twice.
SAVES = """
import os, pathlib, signal, sys, time

folder = pathlib.Path(sys.argv[-1].partition("=")[2])
if (folder / "started").exists():
    sys.exit()

def hear(number, frame):
    if (folder / "heard").exists():
        (folder / "heard").write_text("twice")
        os._exit(9)
    (folder / "heard").write_text("once")

for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, hear)
(folder / "new").write_text(str(os.getpid()))
(folder / "new").rename(folder / "started")
for _ in range(6000):
    if (folder / "heard").exists():
        break
    time.sleep(0.01)
time.sleep(1)
(folder / "saved").touch()
sys.exit(143)
"""
PROGRAM = """
import pathlib, signal
import runs
from bert_tf import cli

def main():
    [*runs.Folder("out").do([runs.Run("model", "saves.py", {})])]

runs.ROOT = pathlib.Path(__file__).parent
# A shell has it ignored by what it runs in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)
cli.run_program(main)
"""


class Program:
    """One that runs the script; it leads a group of processes."""

    def __init__(self, folder):
        folder.mkdir(exist_ok=True)
        (folder / "saves.py").write_text(SAVES)
        (folder / "program.py").write_text(PROGRAM)
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "program.py"],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": f"{paper_programs.PAPER}:{ROOT}"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def found(self, name):
        """The files of a name in the folder of the run."""
        return [*self.folder.glob(f"out/runs/*/{name}")]

    def stop(self, send, number, after):
        """Sends a signal when there is a file in the folder of the run."""
        limit = time.monotonic() + 60
        while not self.found(after):
            assert self.process.poll() is None, self.process.stderr.read()
            assert time.monotonic() < limit
            time.sleep(0.01)
        send(self.process.pid, number)

    def end(self):
        """The exit status, and how often the script was told to stop."""
        self.process.communicate(timeout=60)
        [heard] = self.found("heard")
        return self.process.returncode, heard.read_text()


def test_a_script_is_told_once_to_stop_and_can_save(tmp_path):
    """Be it that a terminal tells all, or a scheduler this program alone."""
    cases = {
        "Ctrl-C": (os.killpg, signal.SIGINT, 130),
        "SIGTERM to all": (os.killpg, signal.SIGTERM, 143),
        "SIGTERM to it alone": (os.kill, signal.SIGTERM, 143),
        "twice": (os.kill, signal.SIGTERM, 143),
    }
    programs = {name: Program(tmp_path / name) for name in cases}
    for name, (send, number, _) in cases.items():
        programs[name].stop(send, number, after="started")
    programs["twice"].stop(os.kill, signal.SIGTERM, after="heard")
    for name, (*_, status) in cases.items():
        program = programs[name]
        once = name != "twice"
        assert program.end() == (status, "once" if once else "twice"), name
        assert len(program.found("saved")) == once, name
        [path] = program.folder.glob("out/runs/*.json")
        record = json.loads(path.read_text())
        assert not record["done"]
        assert record["seconds"] >= once


def is_running(process):
    """Whether there is such a process, or more of it than its exit status."""
    path = pathlib.Path(f"/proc/{process}/stat")
    return (
        path.exists() and path.read_text().rpartition(")")[2].split()[0] != "Z"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="Linux ends the script")
def test_a_killed_program_leaves_no_script_behind(tmp_path):
    """The same command goes on at once."""
    program = Program(tmp_path / "killed")
    program.stop(os.kill, signal.SIGKILL, after="started")
    program.process.communicate(timeout=60)
    again = Program(tmp_path / "killed")
    _, said = again.process.communicate(timeout=60)
    assert again.process.returncode == 0, said
    [path] = again.found("started")
    assert not is_running(int(path.read_text()))
    assert not again.found("heard")


def test_results(runs, text, tmp_path):
    _, model = chain(runs, text)
    folder = runs.Folder(str(tmp_path))
    with pytest.raises(InputError, match="eval_results"):
        folder.results(model)
    os.makedirs(folder.place(model))
    with open(f"{folder.place(model)}/eval_results.txt", "w") as file:
        file.write("eval_accuracy = 0.75\nglobal_step = 12\n")
    found = folder.results(model)
    assert found == {"eval_accuracy": 0.75, "global_step": 12}
    assert json.dumps(found)
