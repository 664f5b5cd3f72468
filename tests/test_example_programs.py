"""The examples: each runs, reports sensible numbers and uses the public API."""

import ast
import importlib.util
import json
import pathlib
import re
import sys

import doc_pages
import numpy as np
import pytest
from checkout import ROOT, python

import bert_tf

EXAMPLES = ROOT / "examples"
PUBLIC = {*bert_tf.__all__, "jobs", "start_tensorflow"}


def output_of(name: str, *arguments: str) -> str:
    done = python(EXAMPLES / name, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def error_of(name: str, *arguments: str) -> str:
    done = python(EXAMPLES / name, *arguments)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    return line


def percentages(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"([\d.]+)%", text)]


def write_model(path: pathlib.Path) -> None:
    config = bert_tf.BertConfig.from_name("L-1_H-64_A-1", vocab_size=9)
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcd"]
    bert_tf.BertModel(config).save_pretrained(
        path, tokenizer=bert_tf.FullTokenizer(vocab)
    )


@pytest.mark.slow
def test_the_demo(tmp_path):
    words = [f"--folder={tmp_path}", "--num_train_steps=10"]
    output = output_of("demo.py", *words)
    assert output.count("\n$ ") == 5
    assert "[MASK] 1: " in output
    report = output[output.index("What was learned") :]
    assert "masked words" in report
    assert "next sentence" in report


@pytest.mark.slow
def test_functional_model():
    """Neither the words nor the temperature are enough alone."""
    both, *without = percentages(output_of("functional_model.py"))
    assert both > 90
    assert len(without) == 2
    assert max(without) < both - 15


@pytest.mark.slow
def test_raw_strings():
    texts = ("Round to the nearest integer.", "Remove the directory.")
    output = output_of("raw_strings.py", *texts)
    right, frequent = percentages(output)
    assert right > frequent + 30
    answers = [f"numbers    {texts[0]}", f"files      {texts[1]}"]
    assert output.splitlines()[-2:] == answers


@pytest.mark.slow
def test_scikit_learn_features():
    pooled, mean, frequent = percentages(output_of("scikit_learn_features.py"))
    assert min(pooled, mean) > frequent + 10


@pytest.mark.slow
def test_semantic_search(tmp_path):
    """The passage that equals the query is found first, once per file."""
    write_model(tmp_path / "model")
    for name in ("one.txt", "two.txt"):
        (tmp_path / name).write_text("a b\nc\n\nd d d d\n \na\n")
    arguments = [f"--init_checkpoint={tmp_path / 'model'}", "--top_k=3"]
    arguments += ["--query=a b c", f"--plot={tmp_path / 'space.png'}"]
    files = [str(tmp_path / name) for name in ("one.txt", "two.txt")]
    lines = output_of("semantic_search.py", *arguments, *files).splitlines()
    assert [line[:8] for line in lines[:2]] == ["1. 1.000", "2. 1.000"]
    assert [line[10:] for line in lines[:2]] == ["a b c", "a b c"]
    assert len(lines) == 3
    assert (tmp_path / "space.png").read_bytes().startswith(b"\x89PNG")
    files = [str(tmp_path / "three.txt")]
    line = error_of("semantic_search.py", *arguments, *files)
    assert line.startswith("semantic_search.py: error: ")


@pytest.mark.slow
def test_spark_embeddings(tmp_path, monkeypatch):
    """A second run replaces the table; vectors equal those of one process."""
    pytest.importorskip("pyspark")
    pandas = pytest.importorskip("pandas")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    write_model(tmp_path / "model")
    texts = [" ".join("abcd"[n % 4] * (n % 9 + 1)) for n in range(50)]
    paths = [str(tmp_path / name) for name in ("model", "texts", "vectors")]
    table = pandas.DataFrame({"id": range(len(texts)), "text": texts})
    (tmp_path / "texts").mkdir()
    for part in range(4):
        table[part::4].to_parquet(tmp_path / f"texts/{part}.parquet")
    for _ in range(2):
        output_of("spark_embeddings.py", *paths)
    found = pandas.read_parquet(paths[2]).sort_values("id")
    model = bert_tf.TextEmbedder.from_pretrained(paths[0])
    assert found["text"].tolist() == texts
    np.testing.assert_allclose(
        np.stack(found["vector"]), model.predict(texts), atol=1e-5
    )


@pytest.mark.slow
def test_jax_training(monkeypatch):
    if importlib.util.find_spec("jax") is None:
        assert "pip install jax" in error_of("jax_training.py")
        return
    # `make test-jax` sets this variable; users do not.
    monkeypatch.delenv("JAX_DISABLE_MOST_OPTIMIZATIONS", raising=False)
    output = output_of("jax_training.py")
    right, as_they_are = percentages(output)
    assert right > as_they_are + 5
    assert output.endswith("(on the jax backend)\n")


def source_of(path: pathlib.Path) -> str:
    """Returns the Python code of a program, a notebook or a page."""
    if path.suffix == ".md":
        return "\n".join(b.text for b in doc_pages.blocks(path, "python"))
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        code = [c["source"] for c in cells if c["cell_type"] == "code"]
        # Commands of IPython, such as %pip.
        return re.sub(
            r"(?m)^( *)[%!].*", r"\1pass", "\n".join(map("".join, code))
        )
    return text


def used_names(source: str) -> set[str]:
    """Returns the names of bert_tf that code imports or uses."""
    paths = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            paths += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            paths += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute) and isinstance(
            node.value, ast.Name
        ):
            paths.append(f"{node.value.id}.{node.attr}")
    return {p.split(".")[1] for p in paths if p.startswith("bert_tf.")}


@pytest.mark.parametrize(
    "path",
    [*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.ipynb"), *doc_pages.PAGES],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_examples_use_public_names_only(path):
    assert used_names(source_of(path)) <= PUBLIC
