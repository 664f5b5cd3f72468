"""Runs: what makes another run, what is done before, what is skipped."""

import fcntl
import json
import os
import pathlib
import types

import paper_programs
import pytest

from bert_tf.errors import InputError
from bert_tf.jobs import vocabulary


@pytest.fixture(scope="module")
def runs():
    with paper_programs.importable() as load:
        yield load("runs")


@pytest.fixture
def scripts(runs):
    with paper_programs.no_jobs() as jobs:
        yield jobs


def chain(runs, text, steps=7):
    """Returns a vocabulary, and a model that uses it."""
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
    # The folder of the text does not matter.
    elsewhere = tmp_path / "moved" / "text.txt"
    elsewhere.parent.mkdir()
    text.rename(elsewhere)
    assert chain(runs, elsewhere)[1].label == model.label
    # Another text makes other runs.
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
    """Otherwise finished runs would be repeated."""
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
    """A flag names the prefix of a TF1 checkpoint."""
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
    # The name of an existing file is not a prefix.
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
def test_remote_and_missing_files_stand_for_themselves(runs, text, one, other):
    models = [
        chain(runs, pattern.format(text=text))[1] for pattern in (one, other)
    ]
    assert models[0].label != models[1].label


def test_finished_runs_are_skipped(runs, scripts, text, tmp_path, capsys):
    vocab, model = chain(runs, text)
    folder = runs.Folder(str(tmp_path / "out"))
    scripts.fails_at = 1
    with pytest.raises(InputError) as caught:
        [*folder.do([model])]
    message = str(caught.value)
    assert message.endswith(
        f"{model.label}: InputError: what was wrong (log: {folder.log(model)})"
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


def test_a_second_phase_continues_in_the_folder_of_the_first(
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


def test_runs_that_need_no_failed_run_are_done(
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
    assert "1 runs failed, and 2 that need them" in str(caught.value)
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
    ends = [KeyboardInterrupt(), "wrong", ""]
    clock = iter([0, 10, 100, 120, 200, 240])
    monkeypatch.setattr(
        runs, "time", types.SimpleNamespace(perf_counter=clock.__next__)
    )

    def attempt(script, words, log):
        end = ends.pop(0)
        if isinstance(end, BaseException):
            raise end
        return end

    monkeypatch.setattr(runs, "run_job", attempt)
    vocab, _ = chain(runs, text)
    folder = runs.Folder(str(tmp_path / "out"))
    for stop in (KeyboardInterrupt, InputError):
        with pytest.raises(stop):
            [*folder.do([vocab])]
        assert folder.record(vocab) is None
    assert [*folder.do([vocab])] == [vocab]
    assert folder.record(vocab)["seconds"] == 70


def test_a_run_of_another_program_is_refused(runs, scripts, text, tmp_path):
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


def test_a_run_that_another_program_finished_meanwhile(
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


# The jobs themselves.


def test_a_job_runs_here_and_its_log_is_kept(runs, text, tmp_path, capsys):
    text.write_text("a b c d e f\n" * 9)
    source = runs.Source.of(str(text))
    given = {"input_file": source, "vocab_size": 11}
    folder = runs.Folder(str(tmp_path / "out"))
    run = runs.Run("words", "create_vocab.py", given, "vocab.txt")
    assert [*folder.do([run])] == [run]
    assert "[MASK]" in pathlib.Path(folder.place(run), "vocab.txt").read_text()
    with open(folder.log(run)) as log:
        assert "Learning from" in log.read()
    output = capsys.readouterr()
    assert "Learning from" not in output.err
    absent = runs.Source.of(str(tmp_path / "absent"))
    bad = run._replace(flags={**given, "input_file": absent})
    with pytest.raises(InputError, match=r"1 runs failed.*absent"):
        [*folder.do([bad])]
    with open(folder.log(bad)) as log:
        assert "Traceback" in log.read()
    assert folder.record(bad) is None
    with pytest.raises(InputError, match=r"1 runs failed.*no_such_flag"):
        [*folder.do([run._replace(flags={**given, "no_such_flag": 1})])]


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit(143)])
def test_a_signal_stops_all_runs(runs, text, tmp_path, monkeypatch, stop):
    def job(config):
        raise stop

    job.__annotations__ = {"config": vocabulary.VocabularyConfig}
    monkeypatch.setattr(vocabulary, "run", job)
    vocab, model = chain(runs, text)
    folder = runs.Folder(str(tmp_path / "out"))
    with pytest.raises(type(stop)):
        [*folder.do([model])]
    assert folder.record(vocab) is None
    assert folder.record(model) is None


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
