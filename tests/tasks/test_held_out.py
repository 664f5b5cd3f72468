"""Scores of models with known answers."""

import conll_files
import numpy as np
import pytest
import sentence_files
import squad_files

from bert_tf import metrics
from bert_tf.errors import InputError
from bert_tf.tasks import custom, datasets, held_out
from bert_tf.tasks.examples import Example
from bert_tf.tasks.ner import TaggingEncoding, make_tagging_features, read_conll
from bert_tf.tasks.questions import SpanEncoding, make_windows

LENGTH = 13
TAGGING = TaggingEncoding(
    tuple(sentence_files.VOCAB), True, None, LENGTH, conll_files.LABELS
)
SPANS = SpanEncoding(tuple(squad_files.VOCAB), True, None, 29, 7, 5)


def features_of(examples):
    return {"input_ids": np.arange(len(examples))[:, np.newaxis]}


def pairs(labels):
    return [Example("t", "a", "b", label=label) for label in labels]


def answering(values, name="probabilities"):
    """Returns a model that gives the k-th row the k-th answer."""
    values = np.array(values, np.float32)
    return lambda features: {name: values[features["input_ids"][:, 0]]}


def test_classes_in_the_order_of_the_model():
    """F1 stays that of class 1, although it is the first of the model."""
    data_set = datasets.find("mrpc").with_labels(("1", "0"))
    labels = ["1", "0", "1", "1", "0"]
    examples = pairs(labels)
    score = held_out.score_classes(data_set, examples, features_of(examples))
    sure = {"1": [0.9, 0.1], "0": [0.2, 0.8]}
    assert score(answering([sure[label] for label in labels])) == {
        "accuracy": 1.0,
        "f1": 1.0,
    }
    scores = score(answering([sure[label] for label in "10000"]))
    assert scores == {"accuracy": pytest.approx(0.6), "f1": pytest.approx(0.5)}


def test_several_labels():
    data_set = custom.data_set(
        "", problem="multi_label", labels=["a", "b", "c"], dev_file="x.tsv"
    )
    labels = [("b",), (), ("c", "a")]
    examples = [Example("t", "t", label=label) for label in labels]
    score = held_out.score_classes(data_set, examples, features_of(examples))
    right = [[0.4, 0.6, 0.1], [0.1, 0.1, 0.5], [0.51, 0.2, 1.0]]
    assert set(score(answering(right)).values()) == {1.0}
    wrong = [[0.4, 0.6, 0.1], [0.1, 0.1, 0.6], [0.51, 0.2, 1.0]]
    scores = score(answering(wrong))
    assert list(scores) == ["micro_f1", "macro_f1", "exact_match"]
    assert scores["exact_match"] == pytest.approx(2 / 3)


def test_regression():
    data_set = datasets.find("sts-b")
    labels = [1.0, 2.5, 4.0, 0.5]
    examples = pairs(labels)
    score = held_out.score_classes(data_set, examples, features_of(examples))
    found = [1.5, 2.0, 4.5, 1.0]
    expected = metrics.compute(("pearson", "spearman"), labels, found)
    assert score(answering(found, "score")) == pytest.approx(expected)


def test_multiple_choice():
    data_set = datasets.find("swag")
    examples = [
        Example(str(n), "a", choices=tuple("bcde"), label=label)
        for n, label in enumerate("302")
    ]
    texts = held_out.texts_of(examples, ["choices", "context"])
    assert texts["choices"].shape == (3, 4)
    assert texts["context"].tolist() == ["a"] * 3
    score = held_out.score_classes(data_set, examples, features_of(examples))
    assert score(answering(np.eye(4)[[3, 0, 2]])) == {"accuracy": 1.0}
    assert score(answering(np.eye(4)[[3, 1, 1]]))["accuracy"] < 0.5


def test_read_as(tmp_path):
    path = tmp_path / "mine.tsv"
    path.write_text("q\t#1\t#2\ta\tb\n1\t3\t4\tone\ttwo\n0\t3\t4\té\tz\n")
    examples = held_out.read_as(datasets.find("mrpc"), str(path))
    assert [e.label for e in examples] == ["1", "0"]
    texts = held_out.texts_of(examples, ["text_a", "text_b"])
    assert texts["text_a"].tolist() == ["one", "é"]
    assert texts["text_b"].tolist() == ["two", "z"]
    with pytest.raises(InputError, match="single texts; the file has pairs"):
        held_out.texts_of(examples, ["text"])
    with pytest.raises(InputError, match=r"development set; got 'ax'"):
        held_out.read_as(datasets.find("ax"), str(path))


def test_an_export_of_pairs_needs_pairs():
    example = Example("0", "one", label="1")
    with pytest.raises(InputError, match="takes pairs of texts"):
        held_out.texts_of([example], ["text_a", "text_b"])


@pytest.fixture(scope="module")
def sentences(tmp_path_factory):
    folder = conll_files.write(tmp_path_factory.mktemp("conll"))
    return read_conll(str(folder / "dev.txt")).sentences


def tagger(sentences, change=lambda ids: ids):
    """Returns a model that knows the answers, without padding."""
    batch = make_tagging_features(sentences, TAGGING).batch
    answers = {
        row.tobytes(): change(ids)
        for row, ids in zip(batch["input_ids"], batch["label_ids"], strict=True)
    }
    longest = batch["input_mask"].sum(axis=1).max()

    def ask(features):
        assert set(features) == {"input_ids", "input_mask", "segment_ids"}
        rows = [answers[row.tobytes()] for row in features["input_ids"]]
        return {"tag_ids": np.array(rows)[:, :longest]}

    return ask


def test_tags(sentences):
    score = held_out.score_tags(sentences, TAGGING)
    assert score(tagger(sentences)) == dict.fromkeys(
        ("f1", "precision", "recall", "accuracy"), 1.0
    )
    scores = score(tagger(sentences, np.zeros_like))
    words = [tag for sentence in sentences for tag in sentence.tags]
    assert scores["recall"] == 0
    assert scores["accuracy"] == pytest.approx(words.count("O") / len(words))


def span_model(questions, shift=0):
    """Returns a model that is certain of the first answer."""
    made = make_windows(questions, SPANS, with_positions=True)
    answers = {
        row.tobytes(): (start, end)
        for row, start, end in zip(
            made.batch["input_ids"].astype(np.int32),
            made.batch["start_positions"],
            made.batch["end_positions"],
            strict=True,
        )
    }

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
    scores = score(span_model(asked))
    exact = "exact" if with_negative else "exact_match"
    assert list(scores) == ["f1", exact]
    assert scores["f1"] == scores[exact] == 100.0
    beside = score(span_model(asked, 1))
    possible = sum(not question.is_impossible for question in asked)
    assert beside["f1"] == pytest.approx(100 * (1 - possible / len(asked)))
