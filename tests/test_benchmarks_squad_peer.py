"""The peer that answers questions: labels of its windows, its best span."""

import dataclasses
import sys
from unittest import mock

import numpy as np
import pytest
from benchmark_modules import PEERS, importable

from bert_tf.tasks.questions import Answer, Question
from tests import squad_files


@pytest.fixture(scope="module")
def peer():
    """The peer's program; what it imports is not installed here."""
    with importable(PEERS, absent=("torch", "transformers")) as module_of:
        yield module_of("huggingface_squad")


def test_the_peer_understands_its_command(
    benchmarks, peer, tmp_path, monkeypatch
):
    """Every flag of the settings, with the value of the settings."""
    settings = benchmarks("comparison").Settings(
        "squad",
        str(tmp_path),
        "/weights",
        max_seq_length=61,
        train_batch_size=17,
        eval_batch_size=5,
        learning_rate=3e-4,
        num_train_epochs=0.5,
        num_threads=3,
        train_file="train.json",
        dev_file="dev.json",
    )
    side = benchmarks("sides").SIDES["huggingface"]
    words = side.arguments(settings, 11, tmp_path)
    monkeypatch.setattr(sys, "argv", words)
    arguments = vars(peer.parse_arguments())
    assert arguments["train_file"] == tmp_path / "train.json"
    assert arguments["predict_file"] == tmp_path / "dev.json"
    assert arguments["random_seed"] == 11
    expected = dataclasses.asdict(settings)
    for name in ("task_name", "data_dir", "train_file", "dev_file"):
        del expected[name]
    assert {name: arguments[name] for name in expected} == expected


def test_the_peer_reads_questions(peer, tmp_path):
    path = squad_files.write(
        tmp_path / "dev.json",
        [
            Question("a", "  who", "it was Ada", (Answer("Ada", 7),)),
            Question("b", "where", "in Rome"),
        ],
    )
    assert peer.read_questions(path) == [
        peer.Question("a", "who", "it was Ada", "Ada", 7),
        peer.Question("b", "where", "in Rome", None, 0),
    ]


@pytest.fixture
def window(peer):
    """`[CLS] who [SEP] it was ad ##a [SEP]`, of "it was Ada"."""
    offsets = np.array([[0, 2], [3, 6], [7, 9], [9, 10]])
    return peer.Window(0, {"input_ids": list(range(8))}, 3, offsets)


@pytest.mark.parametrize(
    ("answer", "start", "places"),
    [
        ("Ada", 7, (5, 6)),
        ("was", 3, (4, 4)),
        ("a", 4, (4, 4)),
        (None, 0, (0, 0)),
        ("Ada Lovelace", 7, (0, 0)),
    ],
)
def test_labels_of_a_window(peer, window, answer, start, places):
    question = peer.Question("a", "who", "it was Ada Lovelace", answer, start)
    found = peer.positions(window, question)
    assert (found["start_positions"], found["end_positions"]) == places


def test_the_best_span_is_one(peer, window):
    """It beats every other that lies in the context and is not too long."""
    generator = np.random.default_rng(0)
    for _ in range(50):
        scores = generator.normal(size=(8, 2))
        sums = {
            (start, end): scores[start, 0] + scores[end, 1]
            for start in range(3, 7)
            for end in range(start, min(7, start + 2))
        }
        best = max(sums, key=sums.get)
        assert peer.best_span(window, scores, 8, 2) == (sums[best], *best)


def test_a_window_without_a_span(peer, window):
    """The only start is behind the only end."""
    scores = np.zeros((8, 2))
    scores[6, 0] = scores[3, 1] = 1.0
    assert peer.best_span(window, scores, 1, 30)[0] == -np.inf


def test_the_best_window_answers(peer, window):
    questions = [
        peer.Question("a", "who", "it was Ada", None, 0),
        peer.Question("b", "what", "it was Ada", None, 0),
    ]
    weak, strong = np.zeros((8, 2)), np.zeros((8, 2))
    weak[4] = 1.0
    strong[5, 0] = strong[6, 1] = 2.0
    arguments = mock.Mock(n_best_size=3, max_answer_length=30)
    found = peer.find_answers(
        questions, [window, window], [weak, strong], arguments
    )
    assert found == {"a": "Ada", "b": ""}
