"""Runs: what makes one another, what is done before, what is not done again."""

import json
import os
import subprocess

import paper_programs
import pytest

from bert_tf.errors import InputError


@pytest.fixture(scope="module")
def runs():
    with paper_programs.importable() as load:
        yield load("runs")


@pytest.fixture
def scripts(monkeypatch):
    scripts = paper_programs.Scripts()
    monkeypatch.setattr(subprocess, "run", scripts)
    return scripts


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
    assert empty.identity == ()
    globs = runs.Source.of(f"{tmp_path}/a*,{tmp_path}/[b-z]*")
    assert globs.identity == runs.Source.of(str(tmp_path)).identity


def test_what_is_needed_is_done_before_and_once(runs, scripts, text, tmp_path):
    vocab, model = chain(runs, text)
    other = chain(runs, text, steps=8)[1]
    folder = runs.Folder(str(tmp_path / "out"))
    assert [*folder.do([model, other])] == [vocab, model, other]
    names = [name for name, _ in scripts.commands]
    assert names == ["create_vocab.py", *["run_pretraining.py"] * 2]
    record = folder.record(model)
    assert record["command"] == folder.command(model)
    assert record["seconds"] >= 0


def test_what_is_done_is_not_done_again(runs, scripts, text, tmp_path, capsys):
    vocab, model = chain(runs, text)
    folder = runs.Folder(str(tmp_path / "out"))
    scripts.fails_at = 1
    with pytest.raises(InputError) as caught:
        [*folder.do([model])]
    message = str(caught.value)
    assert "run_pretraining.py to end well. Received: exit status 3" in message
    assert message.endswith(f"{model.label}.log ends with: what was wrong")
    assert folder.record(vocab) is not None
    assert folder.record(model) is None
    capsys.readouterr()
    scripts.fails_at = None
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
