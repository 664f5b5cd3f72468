"""Scores of models with known answers."""

import conll_files
import numpy as np
import pytest
import sentence_files
import squad_files

from bert_tf import metrics
from bert_tf.contrib import held_out
from bert_tf.errors import InputError
from bert_tf.tasks import custom, datasets
from bert_tf.tasks.conll import TaggingEncoding, read_conll
from bert_tf.tasks.examples import Example
from bert_tf.tasks.questions import SpanEncoding, make_windows

TAGGING = TaggingEncoding(
    tuple(sentence_files.VOCAB), True, None, 13, conll_files.LABELS
)
SPANS = SpanEncoding(tuple(squad_files.VOCAB), True, None, 29, 7, 5)
SEVERAL = custom.data_set("", problem="multi_label", labels=["a", "b", "c"])
NUMBERS = [1.0, 2.5, 4.0, 0.5], [1.5, 2.0, 4.5, 1.0]


@pytest.mark.parametrize(
    ("data_set", "labels", "values", "expected"),
    [
        # F1 is still computed for class 1, the first of the model.
        (
            datasets.find("mrpc").with_labels(("1", "0")),
            "10110",
            np.eye(2)[[0, 1, 1, 1, 1]],
            {"accuracy": 3 / 5, "f1": 2 / 4},
        ),
        (
            SEVERAL,
            [("b",), (), ("c", "a")],
            [[0.4, 0.6, 0.1], [0.1, 0.1, 0.6], [0.51, 0.2, 1.0]],
            {"micro_f1": 6 / 7, "macro_f1": 8 / 9, "exact_match": 2 / 3},
        ),
        (
            datasets.find("sts-b"),
            *NUMBERS,
            metrics.compute(("pearson", "spearman"), *NUMBERS),
        ),
        (
            datasets.find("swag"),
            "302",
            np.eye(4)[[3, 1, 2]],
            {"accuracy": 2 / 3},
        ),
    ],
)
def test_classes(data_set, labels, values, expected):
    examples = [Example("t", "a", "b", label=label) for label in labels]
    rows = {"input_ids": np.arange(len(labels))[:, np.newaxis]}
    score = held_out.score_classes(data_set, examples, rows)
    name = "score" if data_set.problem == "regression" else "probabilities"

    def ask(features):
        return {name: np.array(values)[features["input_ids"][:, 0]]}

    scores = score(ask)
    assert scores == pytest.approx(expected)
    assert list(scores) == list(expected)


def test_texts(tmp_path):
    path = tmp_path / "mine.tsv"
    path.write_text("q\t#1\t#2\ta\tb\n1\t3\t4\tone\ttwo\n0\t3\t4\té\tz\n")
    pairs = held_out.read_as(datasets.find("mrpc"), str(path))
    assert [e.label for e in pairs] == ["1", "0"]
    texts = held_out.texts_of(pairs, ["text_a", "text_b"])
    assert texts["text_a"].tolist() == ["one", "é"]
    assert texts["text_b"].tolist() == ["two", "z"]
    with pytest.raises(InputError, match="single texts; the file has pairs"):
        held_out.texts_of(pairs, ["text"])
    choices = [Example("0", "a", choices=tuple("bcde"))] * 3
    with pytest.raises(InputError, match="takes pairs of texts"):
        held_out.texts_of(choices, ["text_a", "text_b"])
    texts = held_out.texts_of(choices, ["choices", "context"])
    assert texts["choices"].shape == (3, 4)
    assert texts["context"].tolist() == ["a"] * 3
    with pytest.raises(InputError, match="development set; got 'ax'"):
        held_out.read_as(datasets.find("ax"), str(path))


@pytest.mark.parametrize("is_right", [True, False])
def test_tagging(tmp_path, is_right):
    folder = conll_files.write(tmp_path)
    sentences = read_conll(str(folder / "dev.txt")).sentences
    batch = TAGGING.encode(sentences).batch
    longest = batch["input_mask"].sum(axis=1).max()

    def ask(features):
        assert set(features) == {"input_ids", "input_mask", "segment_ids"}
        assert features["input_ids"].tolist() == batch["input_ids"].tolist()
        return {"tag_ids": is_right * batch["label_ids"][:, :longest]}

    scores = held_out.score_tags(sentences, TAGGING)(ask)
    words = [tag for sentence in sentences for tag in sentence.tags]
    accuracy = 1 if is_right else words.count("O") / len(words)
    expected = dict.fromkeys(("f1", "precision", "recall"), int(is_right))
    assert scores == {**expected, "accuracy": pytest.approx(accuracy)}


def span_model(questions, shift):
    """Returns a model that is certain of the first answer."""
    made = make_windows(questions, SPANS, with_positions=True).batch
    rows = [row.astype(np.int32).tobytes() for row in made["input_ids"]]
    places = zip(made["start_positions"], made["end_positions"], strict=True)
    answers = dict(zip(rows, places, strict=True))

    def ask(features):
        ids = features["input_ids"]
        logits = np.zeros((2, *ids.shape), np.float32)
        for row, places in enumerate(answers[row.tobytes()] for row in ids):
            for side, place in enumerate(places):
                # A window without the answer is less certain.
                logits[side, row, place + shift * (place > 0)] = 7 + place
        return {"start_logits": logits[0], "end_logits": logits[1]}

    return ask


@pytest.mark.parametrize("with_negative", [False, True])
def test_answers(with_negative):
    asked = squad_files.questions(11, 3, impossible=3 * with_negative)
    score = held_out.score_answers(asked, SPANS, with_negative)
    exact = "exact" if with_negative else "exact_match"
    assert score(span_model(asked, shift=0)) == {"f1": 100.0, exact: 100.0}
    wrong = score(span_model(asked, shift=1))
    possible = sum(not question.is_impossible for question in asked)
    assert wrong["f1"] == pytest.approx(100 * (1 - possible / len(asked)))
