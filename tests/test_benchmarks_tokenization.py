"""The benchmark of tokenization: equal ids, equal lines, and its texts."""

import sys

import pytest
from benchmark_modules import PEERS, importable
from checkout import ROOT

from bert_tf.tokenization.wordpiece import FullTokenizer
from tests import in_process

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCAB = [*SPECIAL, "the", "cat", "sat", "##s", "고", "##양", "##이", "고양이"]
# It stands for a peer: a tokenizer in Python, or one with a fault.
PROGRAM = f"""
import sys
sys.path[:0] = [{str(PEERS)!r}, {str(ROOT)!r}]
import tokenizing
from bert_tf.tokenization.wordpiece import FullTokenizer

def make(vocab_file, do_lower_case, num_threads):
    tokenizer = FullTokenizer(vocab_file, do_lower_case)
    def ids(line):
        return tokenizer.convert_tokens_to_ids(tokenizer.tokenize(line))
    return lambda lines: lambda: [ids(line)[FIRST:] for line in lines]

tokenizing.main(make, iter, ["pytest"])
"""


@pytest.fixture(scope="module")
def launch(benchmarks):
    with in_process.script("tokenization") as launch:
        yield launch


@pytest.fixture
def benchmark(launch):
    return sys.modules["tokenization"]


@pytest.fixture
def words(benchmark, monkeypatch, tmp_path):
    """A command line; its sides are programs of Python, none of them slow."""
    for name, text in (
        ("pretraining_text/book/one.txt", "The cats\n\nsat. the dog\n" * 5),
        ("nsmc/mini/ratings_train.txt", "1\t고양이\t1\n2\t고양\t0\n"),
        ("vocab/bert-base-uncased-vocab.txt", "\n".join(VOCAB)),
        ("vocab/bert-base-multilingual-cased-vocab.txt", "\n".join(VOCAB)),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for name, first in (("right", 0), ("wrong", 1)):
        path = tmp_path / f"{name}.py"
        path.write_text(PROGRAM.replace("FIRST", str(first)), encoding="utf-8")
    for side in benchmark.TITLES:
        monkeypatch.setitem(benchmark.PROGRAMS, side, tmp_path / "right.py")
    return [
        f"--data_dir={tmp_path}",
        f"--peer_python={sys.executable}",
        f"--original_python={sys.executable}",
        "--rounds=1",
        "--least_seconds=0",
        "--num_threads=1",
        f"--output={tmp_path / 'results.json'}",
    ]


def test_lines_that_differ_are_counted(
    launch, benchmark, words, monkeypatch, tmp_path, capsys
):
    wrong = tmp_path / "wrong.py"
    monkeypatch.setitem(benchmark.PROGRAMS, benchmark.HUGGINGFACE, wrong)
    assert launch(words) == 0
    kept = benchmark.Comparison.read(tmp_path / "results.json")
    assert kept.cases == [
        f"{n}, 1 thread" for n in ("English", "Korean", "mixed")
    ]
    assert kept.sides("mixed, 1 thread") == list(benchmark.TITLES)
    assert kept.aims["Korean, 1 thread"] == benchmark.OTHER_AIMS
    assert kept.facts[0].startswith("English: 10 lines, 0.00 MB")
    assert kept.facts[0].endswith("gives others for 10 lines")
    assert "| English, 1 thread | bert_tf | 1 (" in capsys.readouterr().out


def test_other_ids_than_the_originals_are_an_error(
    launch, benchmark, words, monkeypatch, tmp_path
):
    wrong = tmp_path / "wrong.py"
    monkeypatch.setitem(benchmark.PROGRAMS, benchmark.OURS, wrong)
    said = str(launch(words))
    assert "error: expected the original's ids for all 10 lines" in said
    assert "Received: others for 10" in said


def test_there_have_to_be_texts(launch, words, tmp_path):
    (tmp_path / "nsmc" / "mini" / "ratings_train.txt").unlink()
    assert "error: expected texts in --data_dir" in str(launch(words))


def test_no_more_than_there_is_room_for(benchmark, launch, words, monkeypatch):
    monkeypatch.setattr(benchmark, "FLAGS", type("", (), {"megabytes": 8e-6}))
    assert list(benchmark.within(["abc", "한", "a"])) == ["abc", "한"]


def test_our_side_gives_the_ids_of_all_lines():
    with importable(PEERS) as module_of:
        side = module_of("bert_tf_tokenization")
    lines = ["The cats sat.", "", "고양이 고양", "the cat"] * 3
    python = FullTokenizer(VOCAB, True)
    expected = [
        python.convert_tokens_to_ids(python.tokenize(line)) for line in lines
    ]
    tokenize = side.make(VOCAB, True, 2)(lines)
    for _ in range(2):
        assert list(side.ids(tokenize())) == expected
