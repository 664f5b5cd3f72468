"""Pairs and lists of documents, and their ranks."""

import dataclasses

import keras
import numpy as np
import pytest

import bert_tf
from bert_tf.kinds.classification.cross_encoder import ranks_of_first
from tests.checkpoints.small_models import refused
from tests.text_models.small_text_models import CONFIG, TEXTS, TOKENIZER, larger

pytestmark = pytest.mark.usefixtures("eagerly")
ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
QUIET = {"epochs": 1, "batch_size": 4, "verbose": 0}
# A query, a positive document, and one or more negatives.
LISTS = [["a b", "c", "d e"], ["c", "h", "i i", "", "a"], ["b", "b a", "f"]]
WITHOUT_DROPOUT = dataclasses.replace(
    CONFIG, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
)
PAIRS = [("a", "b"), ("c d", "e")]


def scorer(num_labels=1, config=CONFIG, factor=20):
    keras.utils.set_random_seed(3)
    model = bert_tf.BertClassifier(config, num_labels=num_labels, dropout=0.0)
    larger(model, factor)
    return bert_tf.CrossEncoder(model, TOKENIZER, max_seq_length=13)


def log_odds(model, rows):
    """The scores that losses compare, from the answers."""
    scores = np.array([row["score"] for row in model.predict(rows)])
    return np.log(scores / (1 - scores)) if model.labels else scores


def test_documents_are_ranked():
    model = scorer()
    scores = log_odds(model, [("a b", text) for text in TEXTS])
    order = np.argsort(-scores, kind="stable")
    found = model.rank("a b", TEXTS)
    assert [row["index"] for row in found] == order.tolist()
    assert [row["text"] for row in found] == [TEXTS[n] for n in order]
    [best] = model.rank("a b", TEXTS, top_k=1)
    assert best["index"] == order[0]
    assert model.rank("a b", []) == []


@pytest.mark.parametrize("num_labels", [1, 2])
def test_scores_are_those_of_a_classifier(num_labels):
    model = scorer(num_labels, WITHOUT_DROPOUT)
    other = bert_tf.TextClassifier(model.model, TOKENIZER, max_seq_length=13)
    found = [row["score"] for row in model.predict(PAIRS)]
    answers = other.predict(PAIRS)
    if num_labels == 2:
        expected = [row["probabilities"]["LABEL_1"] for row in answers]
    else:
        expected = [row["score"] for row in answers]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    labels = [0, 1]
    losses = [x.evaluate(PAIRS, labels, verbose=0) for x in (model, other)]
    assert losses[0]["loss"] == pytest.approx(losses[1]["loss"], rel=1e-4)
    assert losses[0].keys() == {"loss", "pearson", "spearman"}
    losses = []
    for each in (model, other):
        each.compile(keras.optimizers.SGD(0.0))
        losses += each.fit(PAIRS, labels, **QUIET).history["loss"]
    np.testing.assert_allclose(*losses, rtol=1e-3)


def test_lists_of_documents_have_a_loss_and_ranks():
    model = scorer(2, WITHOUT_DROPOUT, factor=10)
    scores = [
        log_odds(model, [(query, text) for text in documents])
        for query, *documents in LISTS
    ]
    losses = [np.log(np.exp(row - row[0]).sum()) for row in scores]
    # Of two documents, the logistic loss of their difference.
    margin = scores[0][0] - scores[0][1]
    assert losses[0] == pytest.approx(np.log1p(np.exp(-margin)))
    ranks = np.array([1 + np.sum(row[1:] >= row[0]) for row in scores])
    expected = {
        "loss": pytest.approx(np.mean(losses), rel=1e-3),
        "accuracy": pytest.approx(np.mean(ranks == 1)),
        "mrr": pytest.approx(np.mean(1 / ranks)),
    }
    assert model.evaluate(LISTS, batch_size=2, verbose=0) == expected
    # Another loss is Keras's for several classes.
    hinges = [max(0, 1 + max(0, *row[1:]) - row[0]) for row in scores]
    weights, hinge = [1.0, 3.0, 0.5], keras.losses.CategoricalHinge()
    for values, options in ((losses, {}), (hinges, {"loss": hinge})):
        model.compile(keras.optimizers.SGD(0.0), **options)
        found = model.evaluate(LISTS, sample_weight=weights, verbose=0)["loss"]
        history = model.fit(LISTS, sample_weight=weights, **QUIET).history
        mean = np.mean(np.multiply(values, weights))
        np.testing.assert_allclose([found, *history["loss"]], mean, rtol=1e-3)


def test_ties_do_not_count_as_correct():
    scores = np.array([[2, 1, -1e9], [1, 1, 0], [0, 1, 2], [np.nan, 0, 0]])
    assert ranks_of_first(scores).tolist() == [1, 2, 3, 3]


def test_negatives_that_equal_the_positive_document_are_ignored(caplog):
    model = scorer()
    texts = [row["text"] for row in model.rank("a", ["b", "c d"])]
    expected = model.evaluate([["a", *texts]], verbose=0)
    assert not caplog.messages
    lists = [["a", *texts], ["a", texts[0], texts[0].upper(), texts[1]]]
    assert model.evaluate(lists, verbose=0) == pytest.approx(expected, rel=1e-4)
    [message] = caplog.messages
    assert "Example 1: a negative document equals the positive" in message
    with refused("Example 1: all negative documents equal the positive one"):
        model.evaluate([["a", *texts], ["a", "c", "C", "c"]], verbose=0)


def test_forms_of_lists_of_documents():
    model = scorer()
    lists = [["a b", "c", "d", "e"], ["h", "i", "a", None]]
    with_nan = [lists[0], [*lists[1][:3], np.nan]]
    expected = model._features(lists, None)
    columns = tuple(map(list, zip(*lists, strict=True)))
    for x in (
        [lists[0], lists[1][:3]],
        (*map(list, zip(*with_nan, strict=True)),),
        [*map(tuple, lists)],
        tuple(map(np.array, columns)),
        [[b"a b", b"c", b"d", b"e"], [b"h", b"i", b"a"]],
    ):
        found = model._features(x, None)
        keras.tree.map_structure(
            np.testing.assert_array_equal, found.arrays, expected.arrays
        )
    alone = model._features(("a b", "c", "d", "e"), None)
    assert alone.arrays["input_ids"].shape == (1, 3, 13)
    # One document of the second list is padding.
    counts = expected.arrays["input_mask"].sum(axis=-1)
    assert counts.tolist() == [[6, 6, 6], [5, 5, 1]]
    history = model.fit(columns, validation_split=0.5, **QUIET).history
    assert history.keys() == {
        *("loss", "val_loss", "val_accuracy", "val_mrr"),
    }


# tests/text_models/test_keras_arguments.py reads data sets of texts.
@pytest.mark.slow
@pytest.mark.skipif(not ON_TENSORFLOW, reason="tf.data")
def test_a_data_set_of_lists_of_documents():
    import tensorflow as tf

    columns, weights = (["a b", "h"], ["c", "i"], ["d", "a"]), [1.0, 3.0]
    model = scorer()
    expected = model.evaluate(columns, sample_weight=weights, verbose=0)
    data = tf.data.Dataset.from_tensor_slices((columns, None, weights)).batch(2)
    assert model.evaluate(data, verbose=0) == pytest.approx(expected)
    options = {"steps_per_epoch": 3, "validation_data": data}
    model.fit(data.repeat(), **QUIET, **options)
    assert int(model.optimizer.iterations) == 3


NEEDS = "must be a query, a positive document and at least one negative"
REFUSED = [
    ([["a", "b", "c"], ["a", "b"]], rf"Example 1 {NEEDS}.*got \['a', 'b'\]"),
    ([["a", "b", np.nan]], f"Example 0 {NEEDS}"),
    ((["a"], [None], ["c"]), f"Example 0 {NEEDS}"),
    ([["a", "b"]], "Labels are missing: .* at least one negative document"),
    ((["a"], ["b"], ["c", "d"]), "columns of texts must be equally long"),
]


def test_invalid_lists_of_documents_are_errors():
    model = scorer()
    for lists, message in REFUSED:
        with refused(message):
            model.evaluate(lists)
    with refused("class_weight needs texts or words"):
        model.fit(LISTS, class_weight={"good": 2.0})
    with refused("columns. Pass several texts as a list"):
        model.fit(LISTS[::2], [0] * 2)
    with refused("outputs of the model must be 1, or 2 with two labels"):
        scorer(3)


def test_saved_and_loaded(tmp_path):
    model = scorer(num_labels=2)
    expected = pytest.approx(log_odds(model, PAIRS), rel=1e-3)
    model.save(tmp_path / "model.keras")
    model.save_pretrained(tmp_path / "folder")
    for again in (
        keras.models.load_model(tmp_path / "model.keras"),
        bert_tf.CrossEncoder.from_pretrained(tmp_path / "folder"),
    ):
        assert log_odds(again, PAIRS) == expected
    assert bert_tf.TextClassifier.from_pretrained(tmp_path / "folder").is_pair
