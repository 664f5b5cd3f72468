"""convert_saved_model.py, as it is run."""

import dataclasses
import json
import os
import re
import subprocess
import sys
import types

import in_process
import numpy as np
import pytest
import squad_files
import tensorflow as tf
from checkout import ROOT

from bert_tf import files, metrics
from bert_tf.jobs import convert_saved_model
from bert_tf.jobs.convert_saved_model import ConvertSavedModelConfig
from bert_tf.serving import runtimes
from tests.serving import small_exports
from tests.serving.small_served import NASTY, VOCAB, text_of

# Extras, which the environment of TensorFlow 2.20 does without.
for package in ("onnxruntime", "tf2onnx", "ai_edge_litert"):
    pytest.importorskip(package)

LABELS = small_exports.LABELS
FILES = {"README.md", "labels.txt", "vocab.txt"}


@pytest.fixture(scope="module")
def launch():
    required = ["export_dir", "output_dir", "format"]
    with in_process.script("convert_saved_model", required) as launch:
        yield launch


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """An export, its answers to pairs of texts, and a file of these."""
    path = small_exports.path_of("pairs")
    ask = tf.saved_model.load(str(path)).signatures["serving_default"]
    texts = [" ".join(text_of(t).split()) for t in NASTY if len(t) < 99]
    texts = [text for text in texts if '"' not in text]
    answer = ask(text_a=tf.constant(texts), text_b=tf.constant(texts[::-1]))
    found = answer["probabilities"].numpy().argmax(axis=1)
    # Every third is wrong.
    labels = [(n + (i % 3 == 0)) % len(LABELS) for i, n in enumerate(found)]
    rows = zip(texts, texts[::-1], (LABELS[n] for n in labels), strict=True)
    file = tmp_path_factory.mktemp("data") / "dev.jsonl"
    names = ("text_a", "text_b", "label")
    file.write_text(
        "".join(
            json.dumps(dict(zip(names, row, strict=True))) + "\n"
            for row in rows
        ),
        encoding="utf-8",
    )
    scores = metrics.compute(("accuracy", "macro_f1"), labels, found)
    return path, file, scores


def table_in(text):
    """The rows of the first table of a text, by file; dicts by column."""
    lines = re.search(r"(^\|.*\n)+", text, re.MULTILINE).group().splitlines()
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in lines]
    header, rule, *rows = cells
    assert set("".join(rule)) == {"-"}
    return {row[0]: dict(zip(header, row, strict=True)) for row in rows}


def run_readme(folder, monkeypatch):
    """Runs the program of a README where it stands; its answer and example."""
    text = (folder / "README.md").read_text("utf-8")
    program, *_ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(folder)
    scope = {}
    exec(program, scope)
    for name, values in scope["answer"].items():
        [shown] = re.findall(rf"^{name} = (.*)$", text, re.MULTILINE)
        np.testing.assert_allclose(values, json.loads(shown), atol=1e-5)
    [texts] = re.findall(r"^for `(.*)`\.", text, re.MULTILINE)
    return scope["answer"], json.loads(texts)


def check(folder, printed, pairs, monkeypatch, name):
    """All that is true of whatever was converted."""
    path, _, scores = pairs
    rows = table_in(printed)
    readme = (folder / "README.md").read_text("utf-8")
    assert table_in(readme)[name] == rows[name]
    size = sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
    assert rows["SavedModel"]["MB"] == f"{size / 1e6:.1f}"
    assert rows[name]["MB"] == f"{(folder / name).stat().st_size / 1e6:.1f}"
    assert float(rows[name]["largest difference"]) < 1e-4
    for metric, value in scores.items():
        assert rows["SavedModel"][metric] == f"{value:.4f}"
        assert rows[name][metric] == f"{value:.4f} (+0.0000)"
    for asset in ("vocab.txt", "labels.txt"):
        expected = (path / "assets" / asset).read_bytes()
        assert (folder / asset).read_bytes() == expected
    answer, texts = run_readme(folder, monkeypatch)
    ask = tf.saved_model.load(str(path)).signatures["serving_default"]
    expected = ask(**{key: tf.constant([text]) for key, text in texts.items()})
    np.testing.assert_allclose(
        answer["probabilities"], expected["probabilities"], atol=1e-5
    )


def check_int8(folder, printed, float32, int8):
    """A quarter of the size, and not the same answers."""
    sizes = [(folder / name).stat().st_size for name in (float32, int8)]
    assert 0.2 < sizes[1] / sizes[0] < 0.4
    row = table_in(printed)[int8]
    assert 1e-4 < float(row["largest difference"]) < 0.3
    assert re.fullmatch(r"[01]\.\d{4} \([+-]0\.\d{4}\)", row["accuracy"])


@pytest.mark.slow
def test_onnx(launch, pairs, tmp_path, capsys, monkeypatch):
    path, file, _ = pairs
    words = [f"--export_dir={path.parent}", f"--output_dir={tmp_path}/out"]
    words += ["--format=onnx", "--int8", f"--eval_file={file}"]
    assert launch(words) == 0
    printed = capsys.readouterr().out
    folder = tmp_path / "out"
    assert {*os.listdir(folder)} == FILES | {"model.onnx", "model.int8.onnx"}
    check(folder, printed, pairs, monkeypatch, "model.onnx")
    check_int8(folder, printed, "model.onnx", "model.int8.onnx")


@pytest.mark.slow
def test_litert_as_a_program(pairs, tmp_path, monkeypatch):
    """What it prints is the table; nothing is heard of those it works with.

    But for a line of LiteRT's, which it writes past Python.
    """
    path, file, _ = pairs
    words = [f"--export_dir={path}", f"--output_dir={tmp_path}/out"]
    words += ["--format=litert", "--int8", f"--eval_file={file}"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "convert_saved_model.py"), *words],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    names = ["model.tflite", "model.int8.tflite"]
    assert {*os.listdir(tmp_path / "out")} == FILES | {*names}
    assert [*table_in(done.stdout)] == ["SavedModel", *names]
    assert len(done.stdout.splitlines()) == 5
    check(tmp_path / "out", done.stdout, pairs, monkeypatch, names[0])
    check_int8(tmp_path / "out", done.stdout, *names)
    ours = r"[IW]\d{4} .* (convert_saved_model|examples)\.py:\d+\] "
    for line in done.stderr.splitlines():
        assert re.match(ours, line) or "XNNPACK delegate" in line, line


@pytest.mark.slow
def test_embeddings_have_cosine_similarities(launch, tmp_path, capsys):
    folder = tmp_path / "out"
    words = [f"--export_dir={small_exports.path_of('vectors')}", "--int8"]
    assert launch([*words, f"--output_dir={folder}", "--format=onnx"]) == 0
    rows = table_in(capsys.readouterr().out)
    assert table_in((folder / "README.md").read_text("utf-8")) == rows
    int8 = rows.pop("model.int8.onnx")
    for row in rows.values():
        assert row["mean cosine"].startswith("1.0000")
        assert row["lowest cosine"].startswith("1.0000")
    lowest, mean = (
        float(int8[f"{which} cosine"].split()[0])
        for which in ("lowest", "mean")
    )
    assert 0.9 < lowest <= mean <= 1.0
    assert lowest < 1.0


def score_of(kind, encoding, vocab_file, eval_file, outputs=()):
    """What the script scores a kind of export by; there is no model in it."""
    card = dataclasses.asdict(encoding)
    exported = types.SimpleNamespace(
        assets={"vocab.txt": vocab_file},
        card={
            "kind": kind,
            "labels": list(card.pop("labels", ())),
            "encoding": {k: v for k, v in card.items() if k != "vocab"},
        },
        model=types.SimpleNamespace(
            signatures={
                "serving_default": types.SimpleNamespace(
                    structured_outputs=dict.fromkeys(outputs)
                )
            }
        ),
    )
    config = ConvertSavedModelConfig(
        export_dir="", output_dir="", format="onnx", eval_file=eval_file
    )
    return convert_saved_model._score(config, exported)


@pytest.fixture
def vocab_file(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("".join(f"{word}\n" for word in VOCAB), encoding="utf-8")
    return str(path)


def test_tags_are_scored(launch, tmp_path, vocab_file):
    """By what says "no entity" everywhere."""
    file = tmp_path / "dev.txt"
    lines = ["the O", "cat B-X", "sat O", "on B-Y", "mat I-Y", "b O", "c O"]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    score = score_of("tagger", small_exports.TAGGING, vocab_file, file)
    scores = score(lambda rows: {"tag_ids": np.zeros_like(rows["input_ids"])})
    assert scores["accuracy"] == pytest.approx(4 / 7)
    assert scores["recall"] == 0


@pytest.mark.parametrize(
    ("outputs", "exact"),
    [(["answer"], "exact_match"), (["answer", "null_odds"], "exact")],
)
def test_answers_are_scored(launch, tmp_path, vocab_file, outputs, exact):
    """Whether there may be none is seen from what the export gives."""
    with_negative = "null_odds" in outputs
    asked = squad_files.questions(5, 3, impossible=2 * with_negative)
    version = "v2.0" if with_negative else "1.1"
    file = squad_files.write(tmp_path / "dev.json", asked, version)
    score = score_of(
        "question answering", small_exports.SPANS, vocab_file, file, outputs
    )

    def ask(rows):
        logits = rows["input_ids"].astype(np.float32)
        return {"start_logits": logits, "end_logits": -logits}

    assert [*score(ask)] == ["f1", exact]


def replace_converter(monkeypatch, change=0.0):
    """Lets the export itself stand in for what is made of it.

    Args:
      monkeypatch: Pytest's.
      change: By how much its answers are wrong.
    """
    exported = small_exports.opened("pairs")

    def run(features):
        answer = exported.answer_tokens(features)
        return {k: values + np.float32(change) for k, values in answer.items()}

    runtime = dataclasses.replace(
        runtimes.RUNTIMES["onnx"],
        convert=lambda exported: b"x",
        load=lambda content: run,
    )
    monkeypatch.setitem(runtimes.RUNTIMES, "onnx", runtime)


@pytest.mark.slow
def test_a_remote_folder(launch, pairs, capsys, monkeypatch):
    """ram:// is reached as gs:// is, and no `open` can."""
    replace_converter(monkeypatch)
    folder = "ram://converted/here"
    words = [f"--export_dir={pairs[0]}", f"--output_dir={folder}"]
    assert launch([*words, "--format=onnx"]) == 0
    printed = capsys.readouterr().out
    assert {*files.listdir(folder)} == FILES | {"model.onnx"}
    assert files.listdir("ram://converted") == ["here"]
    assert table_in(files.read_text(f"{folder}/README.md")) == table_in(printed)
    assert files.read_text(f"{folder}/model.onnx") == "x"
    assert launch([*words, "--format=onnx"]) == 1
    said = in_process.the_error(capsys, "convert_saved_model")
    assert f"{folder}: expected a new or empty directory" in said


MISTAKES = [
    (["--export_dir=nowhere"], "Cannot read nowhere"),
    (["--export_dir=full"], "full: there is no saved_model.pb"),
]
# Those are found when there is an export, which takes seconds to make.
LATER_MISTAKES = [
    (["--output_dir=full"], "full: expected a new or empty"),
    (["--output_dir=nowhere://x"], "scheme 'nowhere'"),
    (["--eval_file=nowhere.tsv"], "nowhere.tsv"),
    (["--eval_file=full/mine.tsv"], "no column 'text_a'"),
    (
        ["--eval_file=full/mine.tsv", "--text_a_column=mine"],
        "no column 'text_b'",
    ),
    (
        ["--eval_file=full/mine.tsv", "--task_name=mrpc"],
        "mrpc is single_label with 2 labels, but the export is single_label "
        "with 3",
    ),
    (
        ["--eval_file=full/mine.tsv", "--task_name=mnli"],
        "; mnli has contradiction, entailment, neutral. Name a model of this",
    ),
    (["--eval_file=full/mine.tsv", "--task_name=mrcp"], "Did you mean 'mrpc'"),
]


def check_mistake(launch, folder, capsys, monkeypatch, words, message):
    monkeypatch.chdir(folder)
    (folder / "full").mkdir()
    (folder / "full" / "mine.tsv").write_text("mine\tlabel\na\tcat\n")
    assert launch(["--output_dir=new", "--format=onnx", *words]) == 1
    assert message in in_process.the_error(capsys, "convert_saved_model")
    assert os.listdir(folder) == ["full"]
    assert os.listdir(folder / "full") == ["mine.tsv"]


@pytest.mark.parametrize(("words", "message"), MISTAKES)
def test_an_error_is_one_line_and_nothing_is_written(
    launch, tmp_path, capsys, monkeypatch, words, message
):
    check_mistake(launch, tmp_path, capsys, monkeypatch, words, message)


@pytest.mark.slow
@pytest.mark.parametrize(("words", "message"), LATER_MISTAKES)
def test_an_error_after_opening_the_export(
    launch, pairs, tmp_path, capsys, monkeypatch, words, message
):
    exported = small_exports.opened("pairs")
    monkeypatch.setattr(convert_saved_model, "open_export", lambda _: exported)
    words = [f"--export_dir={pairs[0]}", *words]
    check_mistake(launch, tmp_path, capsys, monkeypatch, words, message)


@pytest.mark.slow
def test_an_encoder_cannot_be_scored(
    launch, pairs, tmp_path, capsys, monkeypatch
):
    """Nor what a newer version of this project may export."""
    read_json = files.read_json
    monkeypatch.setattr(
        files, "read_json", lambda path: {**read_json(path), "kind": "encoder"}
    )
    words = [f"--export_dir={pairs[0]}", f"--output_dir={tmp_path}/out"]
    assert launch([*words, "--format=onnx", "--eval_file=a.tsv"]) == 1
    said = in_process.the_error(capsys, "convert_saved_model")
    assert "--eval_file needs an export with a task" in said
    assert said.endswith(" is an encoder.")


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [2e-4, float("nan")])
def test_nothing_is_written_if_outputs_differ(
    launch, pairs, tmp_path, capsys, monkeypatch, wrong
):
    replace_converter(monkeypatch, wrong)
    words = [f"--export_dir={pairs[0]}", f"--output_dir={tmp_path}/out"]
    assert launch([*words, "--format=onnx"]) == 1
    said = in_process.the_error(capsys, "convert_saved_model")
    assert "model.onnx differs from" in said
    assert f"{tmp_path}/out was not written" in said
    assert not os.listdir(tmp_path)
