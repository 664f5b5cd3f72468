"""Keras's arguments, metrics and data sets with text models."""

import re

import keras
import numpy as np
import pytest
from keras import ops
from sklearn import metrics as sklearn_metrics

import bert_tf
from bert_tf.kinds.vectors import text_model as embedding
from bert_tf.tasks import metrics
from bert_tf.text_models import batches, fit, inputs
from bert_tf.text_models.fit import Validation
from bert_tf.text_models.inputs import Part, class_weights
from tests.checkpoints.small_models import VOCAB, refused
from tests.text_models.small_text_models import (
    CONFIG,
    NAMES,
    TEXTS,
    Sequence,
    answerer,
    classifier,
    embedder,
    filler,
    tagger,
)

pytestmark = pytest.mark.usefixtures("eagerly")
ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
needs_tf_data = pytest.mark.skipif(not ON_TENSORFLOW, reason="tf.data")
QUIET = {"epochs": 1, "batch_size": 4, "verbose": 0}


def probabilities(answers):
    return np.array([[*answer["probabilities"].values()] for answer in answers])


# Predictions and data sets.


def test_arguments_of_predict(capsys):
    model, events = classifier(max_seq_length=5), []
    expected = probabilities(model.predict(TEXTS, 2))
    assert capsys.readouterr().out == ""
    counter = keras.callbacks.Callback()
    counter.on_predict_begin = lambda logs=None: events.append("begin")
    counter.on_predict_batch_end = lambda batch, logs=None: events.append(batch)
    counter.on_predict_end = lambda logs=None: events.append("end")
    found = model.predict(TEXTS, 1, callbacks=[counter], verbose=1, steps=3)
    np.testing.assert_allclose(probabilities(found), expected[:3], rtol=1e-4)
    assert events == ["begin", 0, 1, 2, "end"]
    assert "3/3" in capsys.readouterr().out
    for verbose, is_shown in ((0, False), ("auto", True)):
        model.predict(TEXTS[:5] * 2, 1, verbose)
        assert ("/10" in capsys.readouterr().out) == is_shown


PAIRS = [("a b", "b c"), ("c", "d"), ("e", "f g")]
WORDS = [["a", "b"], ["c"], ["d", "e"]]
# Models with columns of a `PyDataset`, and y for lists.
SEQUENCES = {
    "names of pairs": (
        classifier,
        ([*"abc"], [*"def"]),
        ["good", "bad", "good"],
    ),
    "shares": (classifier, np.array(TEXTS), np.eye(2)[[0, 1, 1, 0, 1, 0, 1]]),
    "numbers": (
        lambda: classifier(1, problem="regression"),
        *(TEXTS[:3], [0.5, 1.0, 0.0]),
    ),
    "several": (
        lambda: classifier(problem="multi_label"),
        *(TEXTS[:3], [["bad"], [], ["good", "bad"]]),
    ),
    "tags": (tagger, WORDS, [["O", "B-X"], ["O"], [0, 1]]),
    "answers": (answerer, PAIRS, ["b", "d", "f g"]),
    "vectors": (embedder, PAIRS, [0.5, 1.0, 0.0]),
}


@pytest.mark.parametrize("kind", SEQUENCES)
def test_a_data_set_of_keras_equals_lists(kind):
    make, x, y = SEQUENCES[kind]
    model, data = make(), Sequence(x, y)
    expected = model.evaluate(x, y, verbose=0)
    assert model.evaluate(data, verbose=0) == pytest.approx(expected, rel=1e-4)
    texts, labeled = x, data
    if kind == "vectors":
        texts, labeled = TEXTS, Sequence(TEXTS)
    answers = model.predict(texts, verbose=0)
    found = model.predict(labeled, verbose=0)
    assert re.sub(r"\d", "", str(found)) == re.sub(r"\d", "", str(answers))
    options = {"class_weight": {1: 2.0}} if kind in ("shares", "tags") else {}
    history = model.fit(data, validation_data=data, **options, **QUIET).history
    assert data.num_epochs == 1
    # The scores of answers are reported after epochs, too.
    for name, value in model.evaluate(x, y, verbose=0).items():
        last = history[f"val_{name}"]
        np.testing.assert_allclose(last, [value], rtol=1e-3, err_msg=name)


def test_steps_of_a_data_set_without_end():
    """All four methods read as many steps as they are asked for."""
    labels, y = [0, 1, 1, 0, 1, 0, 1], [0, 1, 1, 0]
    model, data = classifier(), Sequence(TEXTS, labels, has_end=False)
    expected = model.evaluate(TEXTS[:4], y, verbose=0)
    options = {"batch_size": 2, "verbose": 0}
    found = model.evaluate(data, steps=2, **options)
    assert found == pytest.approx(expected, rel=1e-4)
    found = model.evaluate(TEXTS, labels, steps=2, **options)
    assert found == pytest.approx(expected, rel=1e-4)
    assert len(model.predict(data, steps=2, **options)) == 4
    steps = {"validation_steps": 2, "validation_batch_size": 2}
    steps |= {"steps_per_epoch": 3, "validation_data": data}
    history = model.fit(data, None, 2, 1, **steps, verbose=0).history
    expected = model.evaluate(TEXTS[:4], y, verbose=0)
    assert history["val_loss"][0] == pytest.approx(expected["loss"], rel=1e-3)
    assert int(model.optimizer.iterations) == 3
    for act, name in (
        (model.evaluate, "steps"),
        (model.predict, "steps"),
        (model.fit, "steps_per_epoch"),
        (lambda x: model.fit(TEXTS, [0] * 7, validation_data=x), "validation_"),
    ):
        with refused(f"The data set has no end: pass {name}"):
            act(data)
    with refused("The data set has no end: pass validation_data"):
        model.fit(data, steps_per_epoch=1, validation_split=0.5)


@needs_tf_data
def test_texts_of_a_data_set(monkeypatch):
    """Labels are ignored, and long data sets are read in parts."""
    import tensorflow as tf

    make = tf.data.Dataset.from_tensor_slices
    monkeypatch.setattr(inputs, "TEXTS_AT_A_TIME", 2)
    model, texts = classifier(), TEXTS[:5]
    expected = probabilities(model.predict(texts))
    for x in (make(texts), make(texts).batch(3), make((texts, texts)).batch(2)):
        found = model.predict(x, verbose=0)
        np.testing.assert_allclose(probabilities(found), expected, rtol=1e-4)
    assert len(model.predict(make(texts).batch(2), verbose=0, steps=2)) == 4
    model.is_pair = True
    expected = probabilities(model.predict([(x, x) for x in texts]))
    pairs = make((texts, texts)), make(((texts, texts), [1] * 5)).batch(3)
    for x in (*pairs, make(((texts, texts),))):
        found = model.predict(x, verbose=0)
        np.testing.assert_allclose(probabilities(found), expected, rtol=1e-4)


@pytest.mark.parametrize("make", [classifier, tagger, answerer, filler])
def test_no_texts_have_no_answers(make):
    model = make()
    for x in ([], (), np.array([]), ([], []), Sequence([])):
        assert model.predict(x, verbose=0) == []


def test_pairs_without_negatives():
    """Their loss would be 0, unless they have similarities."""
    model = embedder()
    pairs = [("a", "b"), ("a", "c"), ("b", "c"), ("b", "a")]
    with refused("No pair has a negative, .* the 4 pair"):
        model.fit(pairs, **QUIET)
    data = Part([*pairs, ("e f", "g")])
    assert len(model._training_data(data, 4, 0, None)) >= 1
    scored = Part(pairs, [0.5] * len(pairs))
    assert len(model._training_data(scored, 4, 0, None)) >= 1


# Scores.


@pytest.mark.parametrize(
    ("options", "y", "names"),
    [
        ({}, [0, 1, 1, 0, 1, 0, 1], {"accuracy", "f1", "mcc"}),
        (
            {"num_labels": 3, "doc_stride": 1, "max_seq_length": 5},
            [0, 1, 2, 0, 1, 0, 1],
            {"accuracy", "macro_f1", "mcc"},
        ),
        (
            {"num_labels": 1, "problem": "regression"},
            [0.5, 1, 2, 0, 1, 0, -1],
            {"mae", "pearson", "spearman"},
        ),
        (
            {"num_labels": 2, "problem": "multi_label"},
            [[0, 1], [1, 1], [0, 0], [0, 1], [1, 0], [1, 1], [1, 0]],
            {"accuracy", "exact_match", "micro_f1", "macro_f1"},
        ),
    ],
)
def test_scores_of_the_scripts(options, y, names):
    """They are of the answers to the whole data."""
    model = classifier(**options)
    found = model.evaluate(TEXTS, y)
    assert found.keys() == {"loss", *names}
    answers = model.predict(TEXTS)
    if model.problem == "regression":
        decided = [answer["score"] for answer in answers]
    elif model.problem == "multi_label":
        decided = probabilities(answers) > 0.5
    else:
        decided = probabilities(answers).argmax(axis=1)
    usual = metrics.usual_metrics(model.problem, len(model.labels))
    for name, value in metrics.compute(usual, y, decided).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4)
    assert model.evaluate(TEXTS, y, return_dict=False) == [*found.values()]


def test_callbacks_of_fit():
    """They see scores after the epoch, and know which values are better."""
    stops = [
        keras.callbacks.EarlyStopping("val_accuracy"),
        keras.callbacks.EarlyStopping(
            "val_mcc", mode="max", restore_best_weights=False
        ),
    ]
    last = {}
    end = keras.callbacks.LambdaCallback(on_train_end=last.update)
    model, data = classifier(), (TEXTS, [0, 1, 0, 1, 0, 1, 0])
    history = model.fit(
        *data, **QUIET, validation_data=data, callbacks=[*stops, end]
    ).history
    assert stops[0].monitor_op(1.0, 0.5)
    assert stops[1].monitor_op is not None
    assert last == {name: values[-1] for name, values in history.items()}
    for often in (np.int64(2), [2]):
        validation = Validation(lambda _: {"loss": 1.0}, often)
        validation.callbacks = None
        logs = [{}, {}]
        for epoch, scores in enumerate(logs):
            validation.on_epoch_end(epoch, scores)
        assert logs == [{}, {"val_loss": 1.0}], often


def test_callbacks_that_set_the_learning_rate():
    """They need the optimizer that docs/guide/texts.md names."""
    model = classifier()
    callbacks = keras.callbacks
    for callback, expected in (
        (callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2), 2e-5),
        (
            callbacks.ReduceLROnPlateau("loss", 0.5, patience=1, min_delta=1e9),
            4e-5,
        ),
    ):
        model.compile(bert_tf.AdamWeightDecay(8e-5, global_clipnorm=1.0))
        arguments = {**QUIET, "epochs": 2, "callbacks": callback}
        model.fit(["a", "b"], [0, 1], **arguments)
        rate = float(ops.convert_to_numpy(model.optimizer.learning_rate))
        assert rate == pytest.approx(expected)


# Metrics, labels and weights.


@pytest.mark.parametrize(
    "num_labels",
    [pytest.param(2, marks=[pytest.mark.graph, pytest.mark.slow]), 3],
)
def test_metrics_of_probabilities(num_labels, tmp_path):
    model = classifier(num_labels)
    y = np.array([0, 1, 1, 0, 1, 0, num_labels - 1])
    model.compile(
        metrics=[
            "auc",
            keras.metrics.F1Score(average="macro"),
            keras.metrics.Precision(name="precision"),
            keras.metrics.Recall(class_id=0, thresholds=0.4, name="recall"),
            "sparse_categorical_accuracy",
        ],
        weighted_metrics=[keras.metrics.CategoricalAccuracy(name="right")],
    )
    history = model.fit(TEXTS, y, validation_data=(TEXTS, y), **QUIET).history
    found = model.evaluate(TEXTS, y)
    for name, value in found.items():
        assert history[f"val_{name}"] == [pytest.approx(value, rel=1e-4)]
    shares = probabilities(model.predict(TEXTS))
    best = shares.argmax(axis=1)
    labels = [*range(num_labels)]
    f1 = sklearn_metrics.f1_score(y, best, average="macro", labels=labels)
    assert found["f1_score"] == pytest.approx(f1, rel=1e-4)
    assert found["right"] == pytest.approx(np.mean(best == y))
    assert found["recall"] == pytest.approx((shares[y == 0, 0] > 0.4).mean())
    if num_labels == 2:
        area = keras.metrics.AUC()
        area.update_state(y, shares[:, 1])
        assert found["auc"] == pytest.approx(float(area.result()), rel=1e-4)
        precision = sklearn_metrics.precision_score(y, best, zero_division=0)
        assert found["precision"] == pytest.approx(precision)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.evaluate(TEXTS, y) == pytest.approx(found, rel=1e-4)
    # The label of a target of shares is the one with the largest.
    targets = 0.5 * np.eye(num_labels)[y] + 0.5 / num_labels
    of_shares = model.evaluate(TEXTS, targets)
    for name in ("f1_score", "recall", "right"):
        assert of_shares[name] == pytest.approx(found[name], rel=1e-4)


def test_metrics_of_several_labels():
    model = classifier(problem="multi_label", labels=NAMES[:2])
    y = np.array([[0, 1], [1, 1], [0, 0], [0, 1], [1, 0], [1, 1], [1, 0]])
    model.compile(
        metrics=[
            keras.metrics.Precision(name="precision"),
            keras.metrics.BinaryAccuracy(),
        ]
    )
    found = model.evaluate(TEXTS, y)
    decided = probabilities(model.predict(TEXTS)) > 0.5
    assert found["precision"] == pytest.approx(np.mean(y[decided]))
    assert found["binary_accuracy"] == pytest.approx(np.mean(decided == y))


def test_labels_in_other_forms():
    y = [0, 1, 1, 0, 1, 0, 1]
    model = classifier()
    expected = model.evaluate(TEXTS, y)
    for labels in (np.eye(2, dtype=int)[y], np.reshape(y, [-1, 1])):
        assert model.evaluate(TEXTS, labels) == pytest.approx(expected)
    shares = np.array([[1 - 0.25 * n / 7, 0.25 * n / 7] for n in range(7)])
    found = model.evaluate(TEXTS, shares)
    logs = np.log(probabilities(model.predict(TEXTS)))
    loss = -(shares * logs).sum(axis=1)
    assert found["loss"] == pytest.approx(loss.mean(), rel=1e-3)
    # Training with shares and evaluating with labels.
    options = {"validation_data": (TEXTS, y), "class_weight": {1: 2.0}}
    history = model.fit(TEXTS, shares, **options, **QUIET).history
    assert history["val_accuracy"][0] == model.evaluate(TEXTS, y)["accuracy"]
    for wrong in ([0.5, 0.6], [-0.5, 1.5], [1.0, 0.0, 0.0]):
        with refused("label of example 1 must be 2 numbers whose sum is 1"):
            model.evaluate(["a", "b"], [[0.5, 0.5], wrong])


def test_balanced_weights_of_labels():
    model, y = classifier(), [0, 1, 1, 0, 1, 1, 1]
    model._training_data(Part(TEXTS, y), 7, 0, "balanced")
    expected = 7 / 2 / np.bincount(y)
    found = model._training_task.class_weights
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    model, words = tagger(), Part([["a", "b"], ["c"]], [[0, 1], [0]])
    model._training_data(words, 7, 0, "balanced")
    found = model._training_task.class_weights
    np.testing.assert_allclose(found, [0.75, 1.5, 0], rtol=1e-6)
    np.testing.assert_allclose(class_weights({1: 0.5}, NAMES), [1, 0.5, 1])


# Labels.


def label_ids(model, labels):
    rows = [model._features(["a"], [label]).arrays for label in labels]
    return [row["label_ids"].squeeze().tolist() for row in rows]


@pytest.mark.parametrize(
    ("names", "given", "expected"),
    [
        (("1", "2", "3"), [1, 3.0, "2", b"1", np.int64(2)], [0, 2, 1, 0, 1]),
        (("1", "0"), [1, np.float32(0), "1.0"], [0, 1, 0]),
        (("0.5", "1.0"), [np.float64(0.5), 1], [0, 1]),
        (("True", "False"), [True, np.bool_(False), "true"], [0, 1, 0]),
        (("true", "1"), [True, 1], [0, 1]),
        (("bad", "good"), [1, 0.0, np.bool_(True)], [1, 0, 1]),
    ],
)
def test_a_label_is_the_name_that_it_spells(names, given, expected):
    model = classifier(len(names), problem="single_label", labels=names)
    assert label_ids(model, given) == expected
    one_hot = np.eye(len(names))
    assert label_ids(model, one_hot[expected]) == expected
    for number, name in zip(given, expected, strict=True):
        weights = np.where(np.arange(len(names)) == name, 2.0, 1.0)
        np.testing.assert_array_equal(
            class_weights({number: 2.0}, names), weights
        )
    several = classifier(len(names), problem="multi_label", labels=names)
    rows = one_hot[expected].astype(int).tolist()
    assert label_ids(several, rows) == rows
    if "good" not in names:  # Rows of positions are refused.
        assert label_ids(several, [[label] for label in given]) == rows


# Data sets that are larger than the memory.


@needs_tf_data
def test_a_data_set_is_read_in_parts(monkeypatch):
    import tensorflow as tf

    monkeypatch.setattr(fit, "TEXTS_AT_A_TIME", 8)
    texts = [f"{VOCAB[5 + n % 7]} " * (1 + n % 3) for n in range(23)]
    labels = [n % 2 for n in range(23)]
    weights = [float(n) for n in range(23)]
    data = tf.data.Dataset.from_tensor_slices((texts, labels, weights)).batch(5)
    model = classifier()
    stream = model._training_data(Part(data), 4, 0, {1: 2.0})
    assert len(stream) == 6
    orders = []
    for epoch in range(2):
        stream.epoch = epoch
        steps = [stream[n] for n in range(6)]
        assert [len(y) for _, y, _ in steps] == [4, 4, 4, 4, 4, 3]
        found = np.concatenate([w for *_, w in steps])
        np.testing.assert_allclose(sorted(found), weights, rtol=1e-5)
        orders.append([*found])
    assert orders[0] != orders[1]
    # With `filter`, the number of texts is unknown.
    some = data.unbatch().filter(lambda *_: True)
    history = model.fit(some, batch_size=4, epochs=1, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    assert int(model.optimizer.iterations) == 6
    with refused("The data set has no end: pass steps_per_epoch"):
        model.fit(data.repeat())
    with refused("class_weight='balanced' needs all labels"):
        model.fit(data, class_weight="balanced")


@needs_tf_data
@pytest.mark.parametrize("has_end", [True, False])
def test_steps_per_epoch(has_end, monkeypatch):
    """An epoch continues where the last one ended."""
    import tensorflow as tf

    monkeypatch.setattr(fit, "TEXTS_AT_A_TIME", 8)
    texts, labels = ["a", "b", "c", "d", "e"], [0, 1, 0, 1, 0]
    data = tf.data.Dataset.from_tensor_slices((texts, labels))
    model = classifier()
    data_set = data if has_end else data.repeat(2)
    stream = model._training_data(Part(data_set), 2, 0, None, 4)
    sizes = []
    for epoch in range(2):
        stream.epoch = epoch
        sizes += [len(stream[n][1]) for n in range(4)]
    assert sizes == ([2, 2, 1, 2, 2, 1, 2, 2] if has_end else [2] * 5 + [2] * 3)


def test_similar_documents_are_found(monkeypatch):
    monkeypatch.setattr(embedding, "_DOCUMENTS", 3)
    model = embedder(prompts={"query": "h "})
    queries = ["a b", "c"]
    vectors = model.predict(TEXTS)
    asked = model.predict(queries, prompt_name="query")
    cosines = sklearn_metrics.pairwise.cosine_similarity(asked, vectors)
    found = model.similarity(["h a b", "h c"], vectors)
    np.testing.assert_allclose(found, cosines, rtol=1e-4, atol=1e-5)
    for documents in (TEXTS, iter(TEXTS), np.array(TEXTS)):
        rows = model.search(queries, documents, top_k=4)
        for row, scores in zip(rows, cosines, strict=True):
            found = [x["score"] for x in row]
            np.testing.assert_allclose(found, -np.sort(-scores)[:4], rtol=1e-4)
            for x in row:
                assert TEXTS[x["index"]] == x["text"]
                assert scores[x["index"]] == pytest.approx(x["score"], 1e-4)
    one = model.search(queries[0], TEXTS, top_k=1)
    assert one[0]["text"] == TEXTS[cosines[0].argmax()]
    assert model.predict([], verbose=0).shape == (0, CONFIG.hidden_size)
    assert model.search([], TEXTS) == []
    assert model.search("a", []) == []
    with refused("top_k must be a positive integer; got 0"):
        model.search("a", TEXTS, top_k=0)
    with refused("Texts or labels must be in a list, a column or a"):
        model.search("a", "a b")
    with refused("The length of a vector must be [0-9]+, the size of the"):
        model.similarity("a", np.ones([2, 3], np.float32))


@needs_tf_data
def test_the_data_of_fit_has_no_tuning_thread():
    """It sleeps for up to a minute, for which `fit` would wait at its end."""

    class Steps(batches.StepArguments):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return (np.zeros(3, np.float32),)

    assert Steps().for_backend().options().autotune.enabled is False


@pytest.mark.parametrize("make", [answerer, filler])
def test_rows_and_numbers_have_the_same_loss(make):
    """Keras would broadcast the numbers of positions or words to all logits."""
    pairs = [("a b", "b c d"), ("c", "d e"), ("e", "f g h i")]
    answers = ["b", "d", "f g"]
    data = (pairs, answers) if make is answerer else (TEXTS,)
    found = []
    for loss in (
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        keras.losses.CategoricalCrossentropy(from_logits=True),
    ):
        keras.utils.set_random_seed(7)
        model = make()
        model.compile(keras.optimizers.SGD(0.0), loss)
        found.append(model.fit(*data, **QUIET).history["loss"])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4)
