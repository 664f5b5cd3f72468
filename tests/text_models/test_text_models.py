"""Text models: strings in, answers out, on every backend."""

import contextlib
import dataclasses
import functools
import itertools
import json

import keras
import numpy as np
import pytest
from keras import ops

import bert_tf
from bert_tf.data.schema import INPUTS as FEATURE_NAMES
from bert_tf.errors import InputError
from bert_tf.kinds.tags.conll_files import to_iob2
from bert_tf.kinds.vectors.task import pair_losses
from bert_tf.tasks import metrics
from bert_tf.tasks.encoding import Encoding
from bert_tf.tasks.examples import Example
from bert_tf.text_models import fit, predict
from bert_tf.text_models.batches import EvaluationBatches, TrainingBatches
from bert_tf.text_models.inputs import Part, hold_out, plain_row, whole
from tests.checkpoints.small_models import CONFIG, VOCAB, refused

pytestmark = pytest.mark.usefixtures("eagerly")
ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
TEXTS = ["a b c", "d", "e f g h i", "a a", "b", "i h"]
LABELS = ("bad", "good")
SPARSE = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
CONTEXT = "a b c d e f g h i j k l m n o p q r a b c d"
WORDS = [["a", "b", "c"], ["d"], [], ["e", "f"]]
TAGS = ("O", "B-X", "I-X")

MODELS = {
    "classifier": (bert_tf.TextClassifier, {"labels": LABELS}),
    "windows": (
        bert_tf.TextClassifier,
        {"labels": LABELS, "doc_stride": 3, "window_pooling": "max"},
    ),
    "embedder": (bert_tf.TextEmbedder, {"normalize": True}),
    "vectors of windows": (
        bert_tf.TextEmbedder,
        {"normalize": True, "doc_stride": 3},
    ),
    "masked words": (bert_tf.MaskedWordPredictor, {}),
    "questions": (
        bert_tf.QuestionAnswerer,
        {"doc_stride": 3, "max_query_length": 4},
    ),
    "tagger": (bert_tf.TokenTagger, {"labels": TAGS}),
}
INPUTS = {
    "classifier": TEXTS,
    "windows": [CONTEXT, *TEXTS, CONTEXT[::-1]],
    "embedder": TEXTS,
    "vectors of windows": [CONTEXT, *TEXTS, CONTEXT[::-1]],
    "masked words": ["a [MASK] c", "[MASK]"],
    "questions": [
        *(("a b", CONTEXT), ("c", "b c d"), ("d", "")),
        (b"a\xff b", b"c\x80d \xc3 e \xe4\xb8f"),
    ],
    "tagger": [*map(" ".join, WORDS), CONTEXT, b"a\xffb \xc3 c"],
}


@pytest.fixture(
    scope="module",
    params=[
        # test_windows_of_an_embedder has their numbers.
        pytest.param(
            name, marks=[pytest.mark.slow] * (name == "vectors of windows")
        )
        for name in MODELS
    ],
)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """The Hugging Face folder of a model with large random weights."""
    keras.utils.set_random_seed(1)
    config = dataclasses.replace(
        CONFIG,
        num_hidden_layers=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = bert_tf.BertPretrainer(config)
    model.build()
    for variable in model.trainable_variables:
        variable.assign(ops.convert_to_tensor(variable) * 5)
    folder = tmp_path_factory.mktemp("encoder") / "model"
    tokenizer = bert_tf.FullTokenizer(list(VOCAB))
    model.save_pretrained(folder, tokenizer=tokenizer)
    return folder


def load(encoder, kind, **options):
    keras.utils.set_random_seed(2)
    text_model, own = MODELS[kind]
    model = text_model.from_pretrained(encoder, **{**own, **options})
    # New heads count as trained.
    model.model.random_variables = None
    return model


@functools.cache
def unchanged(encoder, kind):
    """A model that no test trains or changes."""
    return load(encoder, kind)


def values(answers):
    """All numbers of answers, and everything else as text."""
    if isinstance(answers, np.ndarray):
        return answers, ""
    numbers = []

    def keep(x):
        if isinstance(x, float):
            numbers.append(x)
            return None
        return x

    return np.array(numbers), json.dumps(
        keras.tree.map_structure(keep, answers)
    ) + f"{len(numbers)}"


def assert_same(found, expected):
    (numbers, texts), (other, other_texts) = map(values, (found, expected))
    assert texts == other_texts
    np.testing.assert_allclose(numbers, other, rtol=1e-4, atol=1e-6)


def test_saved_and_loaded(encoder, kind, tmp_path):
    model = load(encoder, kind, max_seq_length=13)
    answers = model.predict(INPUTS[kind])
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert type(again) is type(model)
    # JSON has no tuples, as in the shapes that a model is built with.
    configs = [json.dumps(x.get_config()) for x in (again, model)]
    assert configs[0] == configs[1]
    assert_same(again.predict(INPUTS[kind]), answers)
    for form in ("huggingface", *["tf1"] * ON_TENSORFLOW):
        model.save_pretrained(tmp_path / form, format=form)
        again = type(model).from_pretrained(tmp_path / form)
        assert_same(again.predict(INPUTS[kind]), answers)
        config = json.loads(json.dumps(again.get_config()))
        for name, value in json.loads(configs[1]).items():
            if name not in ("model", "max_answer_length"):
                assert config[name] == value, name


def test_one_text_gives_one_answer(encoder, kind):
    model = unchanged(encoder, kind)
    several = model.predict(INPUTS[kind][:1])
    assert_same(model.predict(INPUTS[kind][0]), several[0])


def test_answers_do_not_depend_on_the_batch(encoder, kind):
    model = unchanged(encoder, kind)
    options = {} if kind == "masked words" else {"batch_size": 1}
    assert_same(
        model.predict(INPUTS[kind][::-1], **options),
        model.predict(INPUTS[kind])[::-1],
    )


def test_questions_are_answered_with_the_best_span(encoder):
    """Even if the best start and the best end make none."""
    model = load(encoder, "questions")
    model.rules = dataclasses.replace(model.rules, n_best_size=1)
    questions = INPUTS["questions"]
    for (_, context), found in zip(
        questions, model.predict(questions), strict=True
    ):
        has_span = bool(found["answer"]) and found["start"] >= 0
        assert has_span == bool(context), found
        assert found["score"] == (1.0 if context else 0.0)


@pytest.mark.slow
@pytest.mark.skipif(not ON_TENSORFLOW, reason="exports need TensorFlow")
def test_an_export_gives_the_same_answers(encoder, kind, tmp_path):
    """For texts of every length, truncated or in windows."""
    import tensorflow as tf

    # The model has more positions.
    model = load(encoder, kind, max_seq_length=13)
    texts = [" ".join(["a"] * size) for size in range(25)]
    if kind == "questions":
        texts = [("a b", text) for text in texts]
    elif kind == "masked words":
        texts = [f"[MASK] {text}" for text in texts]
    columns = [*INPUTS[kind], *texts]
    expected = model.predict(columns)
    served = tf.saved_model.load(model.export(tmp_path, version=1))
    function = served.signatures["serving_default"]
    names = ["text"]
    if kind == "questions":
        columns, names = zip(*columns, strict=True), ("question", "context")
        columns = list(columns)
    else:
        columns = [columns]
    arguments = {n: tf.constant(c) for n, c in zip(names, columns, strict=True)}
    outputs = {n: x.numpy() for n, x in function(**arguments).items()}
    if "vector" in outputs:
        np.testing.assert_allclose(outputs["vector"], expected, atol=1e-5)
        return
    text, number = {
        "classifier": ("label", "probability"),
        "windows": ("label", "probability"),
        "masked words": ("words", "probabilities"),
        "questions": ("answer", "score"),
        "tagger": ("tags", "probabilities"),
    }[kind]
    for row, answer in enumerate(expected):
        size = np.shape(answer[number])
        part = tuple(slice(n) for n in size)
        np.testing.assert_allclose(
            outputs[number][row][part], answer[number], rtol=1e-4
        )
        theirs = np.char.decode(np.asarray(outputs[text][row]).astype(bytes))
        assert theirs[part].tolist() == answer[text]
    if kind == "questions":
        places = [[row["start"], row["end"]] for row in expected]
        assert np.stack([outputs["start"], outputs["end"]], 1).tolist() == (
            places
        )


def test_windows_of_a_classifier(encoder):
    """The logits of its windows are pooled; their parameters are saved."""
    whole = load(encoder, "classifier")
    parts = ["b c d", "d e f", "f g h", "h i"]
    for pooling in ("mean", "max"):
        model = load(
            encoder,
            "windows",
            max_seq_length=5,
            doc_stride=2,
            window_pooling=pooling,
        )
        model.model.set_weights(whole.model.get_weights())
        rows = [whole.predict(part)["probabilities"] for part in parts]
        logits = np.log([[row[name] for name in LABELS] for row in rows])
        if pooling == "mean":
            pooled = np.exp(logits.mean(axis=0))
            expected = pooled / pooled.sum()
            found = model.predict(" ".join("bcdefghi"))["probabilities"]
            np.testing.assert_allclose([*found.values()], expected, rtol=1e-4)
        assert_same(model.predict("a b"), whole.predict("a b"))
    with refused("doc_stride must be a positive integer; got 0"):
        load(encoder, "windows", doc_stride=0)
    with refused("window_pooling must be one of mean or max; got 'sum'"):
        load(encoder, "windows", window_pooling="sum")


@pytest.mark.parametrize(
    ("pooling", "normalize"), [("mean", True), ("max", False), ("cls", True)]
)
def test_windows_of_an_embedder(encoder, pooling, normalize):
    """Their vectors are pooled before they are normalized."""
    options = {"pooling": pooling, "max_seq_length": 5}
    whole = load(encoder, "embedder", normalize=False, **options)
    model = load(
        encoder, "embedder", normalize=normalize, doc_stride=2, **options
    )
    vectors = whole.predict(["b c d", "d e f", "f g h", "h i"])
    if pooling == "max":
        expected = vectors.max(axis=0)
    else:
        # With [CLS] and [SEP].
        expected = np.average(vectors, axis=0, weights=[5, 5, 5, 4])
    if normalize:
        expected /= np.linalg.norm(expected)
    found = model.predict([" ".join("bcdefghi"), "a"])
    np.testing.assert_allclose(found[0], expected, rtol=1e-4, atol=1e-5)
    pairs = [("a b c d e f", "b"), ("c", "d e f g"), ("e", "a b c d e h")]
    cosines = [
        a @ b / np.linalg.norm(a) / np.linalg.norm(b)
        for a, b in map(model.predict, map(list, pairs))
    ]
    scores = model.evaluate(pairs, cosines)
    np.testing.assert_allclose([*scores.values()], 1, rtol=1e-5)
    history = model.fit(pairs, epochs=1, verbose=0).history
    assert np.isfinite(history["loss"]).all()


# Training.


def trained(model, x, y=None, **options):
    options = {"epochs": 6, "batch_size": 4, "verbose": 0, **options}
    model.compile(learning_rate=3e-3)
    return model.fit(x, y, **options)


@pytest.mark.graph
def test_training_on_windows_is_scored_by_text(encoder):
    model = load(
        encoder, "windows", max_seq_length=7, doc_stride=4, window_pooling="max"
    )
    texts = ["a c", *(" ".join(9 * "ab" + word) for word in "cdcd"), "b d"]
    labels = ["good" if text[-1] == "c" else "bad" for text in texts]
    history = trained(
        model,
        texts,
        labels,
        epochs=3,
        validation_data=(texts, labels),
        class_weight={0: 1.0, 1: 1.5},
    ).history
    found = model.evaluate(texts, labels)
    np.testing.assert_allclose(found["loss"], history["val_loss"][-1], 1e-4)
    probabilities = [
        answer["probabilities"][label]
        for answer, label in zip(model.predict(texts), labels, strict=True)
    ]
    expected = -np.log(probabilities).mean()
    np.testing.assert_allclose(found["loss"], expected, rtol=1e-3)
    accuracy = np.mean(np.array(probabilities) > 0.5)
    assert found["accuracy"] == pytest.approx(accuracy)
    # Every text has the same weight.
    arrays = model._features(texts, labels).arrays
    starts = np.flatnonzero(arrays["window_numbers"] == 0)
    weights = 1 / arrays["num_windows"]
    np.testing.assert_allclose(
        np.add.reduceat(weights, starts), len(weights) / len(texts), rtol=1e-5
    )


@pytest.mark.graph
def test_a_classifier_learns(encoder):
    model = load(encoder, "classifier")
    texts, labels = ["a b", "c d"] * 8, ["good", "bad"] * 8
    history = trained(
        model,
        texts,
        labels,
        epochs=20,
        batch_size=8,
        validation_data=(texts[:2], labels[:2]),
    ).history
    assert history["loss"][-1] < history["loss"][0] / 2
    assert {"accuracy", "val_loss", "val_accuracy"} <= history.keys()
    found = model.evaluate(texts, labels, verbose=0)
    assert found["accuracy"] == 1
    np.testing.assert_allclose(found["loss"], history["val_loss"][-1], 1e-3)
    assert [a["label"] for a in model.predict(texts[:2])] == labels[:2]
    # 16 texts in batches of 8, 20 times.
    assert int(model.optimizer.iterations) == 40
    schedule = model.optimizer._learning_rate
    assert (schedule.peak, schedule.num_train_steps) == (3e-3, 40)
    assert schedule.num_warmup_steps == 4


def test_each_fit_resets_the_schedule_and_optimizer(encoder, tmp_path):
    texts, labels = ["a b", "c d"] * 4, ["good", "bad"] * 4
    model = load(encoder, "classifier")
    trained(model, texts, labels, epochs=1)
    assert float(model.optimizer.learning_rate) == 0
    before = ops.convert_to_numpy(model.model.output_weights)
    model.save(tmp_path / "model.keras")
    for again in (model, keras.models.load_model(tmp_path / "model.keras")):
        again.fit(texts, labels, epochs=1, batch_size=4, verbose=0)
        after = ops.convert_to_numpy(again.model.output_weights)
        assert np.abs(after - before).max() > 1e-3
        assert int(again.optimizer.iterations) == 2


def test_evaluations_mask_the_same_words(encoder):
    model = load(encoder, "masked words")
    found = [model.evaluate(TEXTS, verbose=0)["loss"] for _ in range(2)]
    np.testing.assert_allclose(*found, rtol=1e-5)
    features = model._features(TEXTS, None)
    batch = EvaluationBatches(features, 2).batch(np.arange(2))
    ids = [
        model._drawn({**batch, "step": np.array(step)}, True)["input_ids"]
        for step in range(20)
    ]
    assert any((ids[0] != other).any() for other in ids[1:])


@pytest.mark.slow
def test_a_second_training_with_a_loss_scale(encoder):
    model = load(encoder, "classifier", dtype="mixed_float16")
    for _ in range(2):
        trained(model, ["a b", "c d"], ["good", "bad"], epochs=2)
        # Steps whose gradients overflow are not counted.
        assert int(model.optimizer.inner_optimizer.iterations) > 0
        assert float(model.optimizer.dynamic_scale) >= 1


@pytest.mark.slow
def test_other_models_learn(encoder):
    tagger = load(encoder, "tagger")
    words, tags = [["a", "b", "c"], ["d", "a"]] * 4, [[1, 2, 0], [0, 1]] * 4
    trained(tagger, words, tags, epochs=20)
    assert tagger.evaluate(words, tags)["f1"] == 1
    answerer = load(encoder, "questions")
    pairs, answers = [("a", "b c d"), ("b", "c d e")] * 4, ["c", "e"] * 4
    trained(answerer, pairs, answers, epochs=20)
    assert answerer.evaluate(pairs, answers)["exact_match"] == 100
    words = load(encoder, "masked words")
    history = trained(words, ["a b a b a b"] * 8, epochs=10).history
    assert history["loss"][-1] < history["loss"][0] / 2
    embedder = load(encoder, "embedder", max_seq_length=5)
    pairs = [("a", "f"), ("b", "g"), ("c", "h"), ("d", "i")]
    history = trained(embedder, pairs, epochs=30).history
    assert history["loss"][-1] < history["loss"][0] / 2
    scores = [1.0, 0.0, 1.0, 0.0]
    trained(embedder, pairs, scores, epochs=30)
    assert embedder.evaluate(pairs, scores)["pearson"] > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("problem", ["multi_label", "regression"])
def test_other_problems(encoder, problem):
    y = [3.0, -1.0] if problem == "regression" else [["good", "bad"], []]
    model = load(
        encoder,
        "classifier",
        problem=problem,
        **({"labels": None} if problem == "regression" else {}),
    )
    trained(model, ["a b", "c d"] * 4, y * 4, epochs=30)
    first, second = model.predict(["a b", "c d"])
    if problem == "regression":
        assert first["score"] > 1 > second["score"]
    else:
        assert first["labels"] == ["bad", "good"]
        assert second["labels"] == []
        matrix = model._features(["a", "b"], np.array([[1, 1], [0, 0]]))
        assert matrix.arrays["label_ids"].tolist() == [[1, 1], [0, 0]]


def test_pair_loss():
    """No text is a negative of itself or of its other partners."""
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=[5, 2, 7]).astype("float32")
    texts = [[1, 2], [3, 4], [1, 5], [6, 2], [7, 3]]
    scores = np.array([np.nan, 0.25, np.nan, np.nan, np.nan], "float32")
    found = pair_losses(
        scores, np.array(texts, "int32"), ops.convert_to_tensor(vectors)
    )
    found = ops.convert_to_numpy(found)
    unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    cosines = unit[:, 0] @ unit[:, 1].T
    powers = np.exp(20 * cosines)
    wrong = [(0, 2), (2, 0), (0, 3), (3, 0), (1, 4), (2, 3)]
    for row, col in wrong:
        powers[row, col] = 0
    expected = -np.log(np.diag(powers) / powers.sum(axis=1))
    expected[1] = (cosines[1, 1] - 0.25) ** 2
    np.testing.assert_allclose(found, expected, rtol=1e-4)


# Weights, and parts of the data.


def keras_loss(model, x, y):
    features = model._features(x, y)
    return predict.keras_scores(model, features, 8, verbose=0)["loss"]


def losses(model, x, y):
    """The loss of each text by itself."""
    rows = zip(x, y, strict=True)
    return np.array([keras_loss(model, [a], [b]) for a, b in rows])


@pytest.mark.parametrize("name", ["classifier", "questions", "tagger"])
def test_weights_of_texts(encoder, name):
    x = {
        "classifier": ["a b", "c", "d e f"],
        # The second context needs several windows.
        "questions": [("a", "b c"), ("b", CONTEXT), ("c", "d e")],
        # The second has two rows, the third no words.
        "tagger": [["a", "b"], list("abcdefghijklm"), []],
    }[name]
    y = {
        "classifier": [0, 1, 0],
        "questions": ["b", "r", "e"],
        "tagger": [[0, 1], [1, 2] + [0] * 11, []],
    }[name]
    model = load(encoder, name, max_seq_length=10)
    weights = np.array([0.5, 3.0, 0.25])
    found = model.evaluate(x, y, sample_weight=weights, verbose=0)["loss"]
    if name == "classifier":
        expected = (losses(model, x, y) * weights).mean()
    else:
        rows = model._features(x, y).arrays["example_index"]
        counts = np.bincount(rows)
        assert counts[1] > 1
        if name == "tagger":
            counts = np.array([2, 13])
            x, y, weights = x[:2], y[:2], weights[:2]
        shares = weights * counts
        # The mean over windows, or over words.
        expected = (losses(model, x, y) * shares).sum()
        expected /= counts.sum()
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_numbers_are_weighted_and_averaged_by_text(encoder):
    """Whatever the size of the batches."""
    model = load(encoder, "classifier", problem="regression", labels=None)
    x, y = ["a b", "c", "d e f", "e", "f"], [0.5, 8.0, 1.0, 4.0, 2.0]
    errors = np.array([row["score"] for row in model.predict(x)]) - y
    weights = np.array([0.0, 2.0, 0.5, 1.0, 3.0])
    for size in (1, 2, 5):
        scores = model.evaluate(x, y, size, verbose=0)
        assert scores["mae"] == pytest.approx(np.abs(errors).mean(), rel=1e-4)
        assert scores["loss"] == pytest.approx((errors**2).mean(), rel=1e-4)
        scores = model.evaluate(x, y, size, sample_weight=weights, verbose=0)
        expected = (weights * errors**2).mean()
        assert scores["loss"] == pytest.approx(expected, rel=1e-4)


# The next test has the numbers.
@pytest.mark.slow
def test_weights_of_texts_and_classes_in_training(encoder):
    model = load(encoder, "classifier")
    texts, labels = ["a b", "a b", "c d", "c d"] * 4, [0, 1, 1, 1] * 4
    # What "a b" is depends on both weights; 2 * 0.1 is less than 1.
    trained(
        model,
        texts,
        labels,
        epochs=15,
        sample_weight=[1, 2, 1, 1] * 4,
        class_weight={"good": 0.1},
    )
    found = [answer["label"] for answer in model.predict(["a b", "c d"])]
    assert found == ["bad", "good"]


@pytest.mark.parametrize("loss", ["auto", SPARSE])
@pytest.mark.parametrize("batch_size", [1, 12])
@pytest.mark.parametrize("kind", ["texts", "words", "windows"])
def test_class_weights_multiply_losses(encoder, kind, batch_size, loss):
    """As in Keras: sum(weight * loss) / number of texts, or of words."""
    weights = np.array([0.5, 100.0])
    options = {"dropout": 0.0}
    if kind == "words":
        model = load(encoder, "tagger", labels=["O", "X"], **options)
        x, y = [["a", "b"], ["c", "d"]] * 3, [[0, 1], [1, 1]] * 3
    else:
        # Each text has two windows.
        if kind == "windows":
            options |= {"max_seq_length": 5, "doc_stride": 1}
        model = load(encoder, "classifier", **options)
        x, y = ["a b c d", "e f g h", "d c b a"] * 2, [0, 1, 1] * 2
    arrays = model._features(x, y).arrays
    inputs = {name: arrays[name].astype("int32") for name in FEATURE_NAMES}
    logits = ops.convert_to_numpy(ops.log_softmax(model(inputs)))
    labels = arrays["label_ids"][..., np.newaxis]
    losses = -np.take_along_axis(logits, labels, -1) * weights[labels]
    is_counted = arrays.get("label_mask", np.ones(len(losses))) > 0
    model.compile(keras.optimizers.SGD(0.0), loss)
    history = model.fit(
        *(x, y, batch_size),
        epochs=1,
        class_weight=dict(enumerate(weights)),
        verbose=0,
    )
    expected = losses[is_counted].mean()
    assert history.history["loss"] == [pytest.approx(expected, rel=1e-5)]


def own_loss(rows, logits):
    """A user's loss, which gets rows as they are given."""
    return -ops.sum(rows * ops.log_softmax(logits), axis=-1)


ROWS = keras.losses.CategoricalCrossentropy(from_logits=True)
FOCAL = keras.losses.CategoricalFocalCrossentropy(from_logits=True)


@pytest.mark.parametrize(
    ("loss", "form"),
    [
        *itertools.product([ROWS, FOCAL, "mse"], ["names", "rows", "tags"]),
        *[(ROWS, "shares"), (FOCAL, "shares"), (own_loss, "rows")],
        (SPARSE, "rows"),
    ],
)
def test_losses_get_labels_in_their_form(encoder, loss, form):
    """Labels [B] and logits [B, C] would be broadcast where B equals C."""
    kind, options = "classifier", {"dropout": 0.0}
    x, rows = ["a b", "c"], np.eye(2)[[1, 0]]
    y = ["good", "bad"] if form == "names" else rows
    if form == "shares":
        y = rows = np.array([[0.25, 0.75], [0.5, 0.5]])
    if form == "tags":
        kind, options["labels"] = "tagger", ["O", "X"]
        # Two texts of two tokens.
        options["max_seq_length"] = 4
        x, y, rows = [["a", "b"]] * 2, [[0, 1]] * 2, [np.eye(2)[[0, 0, 1, 0]]]
    model = load(encoder, kind, **options)
    model.compile(keras.optimizers.SGD(0.0), loss)
    arrays = model._features(x, y).arrays
    inputs = {name: arrays[name].astype("int32") for name in FEATURE_NAMES}
    compare = ROWS if loss is SPARSE else keras.losses.get(loss)
    compare = getattr(compare, "fn", compare)
    if loss in (ROWS, FOCAL, SPARSE):
        compare = functools.partial(compare, from_logits=True)
    logits = model(inputs)
    rows = ops.broadcast_to(ops.cast(rows, "float32"), logits.shape)
    expected = ops.convert_to_numpy(compare(rows, logits))
    expected = expected[:, 1:3] if form == "tags" else expected
    history = model.fit(x, y, batch_size=2, epochs=1, verbose=0).history
    assert history["loss"] == [pytest.approx(expected.mean(), rel=1e-4)]
    weights = np.array([0.5, 3.0])
    found = model.evaluate(x, y, sample_weight=weights, verbose=0)["loss"]
    expected = (expected.T * weights).mean()
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.graph
def test_each_training_has_its_own_class_weights(encoder):
    """A training reuses the compiled step of the previous one."""
    model = load(encoder, "classifier", dropout=0.0)
    model.compile(keras.optimizers.SGD(0.1))
    options = {"batch_size": 2, "epochs": 1, "verbose": 0}
    found = []
    for weights in ({"bad": 0.0}, {"good": 0.0}):
        before = model.predict("a b")["probabilities"]["good"]
        model.fit(
            *(["a b"] * 2, ["good", "bad"]), class_weight=weights, **options
        )
        after = model.predict("a b")["probabilities"]["good"]
        found.append(after - before)
    assert found[0] > 0 > found[1]


def learned(student, teacher, weight, texts, labels):
    """The features that a student learns from."""
    student._teacher = fit.Teacher(student, teacher, weight, 1.0)
    batches = student._training_data(Part(texts, labels), 8, 0, None)
    student._teacher = None
    [features] = batches.parts()
    return features


def test_texts_without_labels_have_a_teacher(encoder):
    model, teacher = (load(encoder, "classifier") for _ in range(2))
    at_once = {"batch_size": 8}
    labels = ["good", "bad"] * 4
    trained(teacher, ["a b", "c d"] * 4, labels, epochs=10, **at_once)
    texts = ["a b", "c d", "a c", "b d"] * 2
    options = {"teacher": teacher, "distillation_weight": 1.0, **at_once}
    loss = trained(model, texts, epochs=15, **options).history["loss"]
    assert loss[-1] < loss[0] / 2
    found = [row["label"] for row in model.predict(texts)]
    assert found == [row["label"] for row in teacher.predict(texts)]
    # Texts without labels have no part in the loss of the labels.
    some = ["good", None, "bad", None] * 2
    features = learned(model, teacher, 0.5, texts, some)
    assert model._label_ids(features).tolist() == [1, 0, 1, 0]
    losses = {}
    teacher_shares = np.array(
        [[*x["probabilities"].values()] for x in teacher.predict(texts)]
    )
    for weight in (0.0, 1.0):
        student = load(encoder, "classifier")
        student.compile()
        features = learned(student, teacher, weight, texts, some)
        x, y, weights = student._arguments(True, features.arrays)
        logits = x["teacher_logits"]
        losses[weight] = float(
            student.compute_loss(x, y, logits, weights, training=True)
        )
    chosen = -np.log(teacher_shares)[[0, 2, 4, 6], [1, 0, 1, 0]]
    assert losses[0.0] == pytest.approx(chosen.mean(), rel=1e-4)
    assert losses[1.0] == pytest.approx(0, abs=1e-6)
    other = bert_tf.TextClassifier.from_pretrained(encoder, labels=["x", "y"])
    with refused("`teacher` is not a fine-tuned model .* no such head"):
        model.fit(texts, teacher=other)
    trained(other, ["a b"], ["x"], epochs=1)
    with refused("`teacher` has the labels x and y; the model"):
        model.fit(texts, teacher=other)
    with refused("`teacher` must be a TextClassifier, or a path"):
        model.fit(texts, teacher=model.model)
    for name, value in (("temperature", np.nan), ("distillation_weight", "1")):
        with refused(f"`{name}` must be"):
            model.fit(texts, teacher=teacher, **{name: value})
    for other in ("embedder", "masked words"):
        student = load(encoder, other)
        with refused("has no `teacher`"):
            student.fit(texts, teacher=student)
    model.compile(loss="mse")
    with refused("A teacher needs `loss=auto`"):
        model.fit(texts, teacher=teacher)


@pytest.mark.parametrize(
    ("problem", "doc_stride"),
    [
        *(("single_label", 3), ("multi_label", None), ("regression", 3)),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                *(("single_label", None), ("multi_label", 3)),
                ("regression", None),
            )
        ),
    ],
)
def test_missing_labels_are_not_scored(encoder, problem, doc_stride):
    """Metrics compare with the teacher's answers, validation ignores them."""
    options = {"problem": problem, "doc_stride": doc_stride}
    if problem == "regression":
        options["labels"] = None
    student = load(encoder, "classifier", **options)
    texts = [CONTEXT, "a b", "c d", "b d"]
    known = {
        "single_label": ["good", [0.25, 0.75]],
        "multi_label": [["good"], [0, 1]],
        "regression": [2.0],
    }
    for label in known[problem]:
        labels = [None, label, float("nan"), label]
        student.compile(optimizer=keras.optimizers.SGD(0.0))
        # The student is its own teacher, and does not change.
        features = learned(student, student, 0.5, texts, labels)
        _, targets, _ = student._arguments(True, features.arrays)
        is_labeled = features.arrays["is_labeled"]
        logits = features.arrays["teacher_logits"][~is_labeled]
        expected = {
            "single_label": logits.argmax(-1),
            "multi_label": logits > 0,
            "regression": logits,
        }[problem]
        found = targets[~is_labeled]
        if problem == "single_label" and found.ndim == 2:
            found = found.argmax(axis=-1)
        np.testing.assert_array_equal(found, expected)
        options = {"teacher": student, "epochs": 1, "verbose": 0}
        history = student.fit(
            texts, labels, validation_data=(texts, labels), **options
        ).history
        scores = student.evaluate(texts[1::2], [label] * 2, verbose=0)
        for name, value in scores.items():
            [other] = history[f"val_{name}"]
            assert other == pytest.approx(value, 1e-5, nan_ok=True), name
    for missing in (None, [None] * 4):
        data = texts if missing is None else (texts, missing)
        with refused("labels"):
            student.fit(texts, validation_data=data, **options)


def test_balanced_classes_count_labeled_texts(encoder):
    model, teacher = (load(encoder, "classifier") for _ in range(2))
    model.compile()
    options = {"teacher": teacher, "epochs": 1, "verbose": 0}
    model.fit(
        TEXTS, ["good"] * 3 + [None] * 3, class_weight="balanced", **options
    )
    np.testing.assert_allclose(model._training_task.class_weights, [0, 1])
    with refused("No text has a label"):
        model.fit(TEXTS, class_weight="balanced", **options)


def test_epochs_have_every_row_once(encoder):
    model = load(encoder, "classifier")
    features = model._features(
        ["a", "b c", "d"] * 6 + ["e"], [0, 1, 1] * 6 + [0]
    )
    batches = TrainingBatches(lambda: [features], 5, 4, 5, lambda batch: batch)
    orders = []
    for epoch in range(3):
        batches.epoch = epoch
        steps = [batches[index] for index in range(5)]
        assert [len(step["input_ids"]) for step in steps] == [4, 4, 4, 4, 3]
        assert [step["step"] for step in steps] == [
            *range(5 * epoch, 5 * epoch + 5)
        ]
        rows = np.concatenate([step["example_index"] for step in steps])
        assert sorted(rows) == [*range(19)]
        labels = np.concatenate([step["label_ids"] for step in steps])
        np.testing.assert_array_equal(
            labels, features.arrays["label_ids"][rows]
        )
        orders.append(rows)
    assert (orders[0] != orders[1]).any()


def test_the_last_part_is_held_out():
    rows = ["a", "b", "c", "d", "e"]
    for x, first, last in (
        (rows, rows[:4], rows[4:]),
        (np.array(rows), rows[:4], rows[4:]),
        ((rows, rows), (rows[:4], rows[:4]), (rows[4:], rows[4:])),
        ({"a": rows}, {"a": rows[:4]}, {"a": rows[4:]}),
    ):
        kept, held_out = hold_out(Part(x, [1, 2, 3, 4, 5]), 0.2)
        assert kept == (first, [1, 2, 3, 4], None)
        assert held_out == (last, [5], None)
    with refused("validation_split=0.5 of 1 texts leaves no text"):
        hold_out(Part(["a"]), 0.5)
    with refused("validation_split must be at least 0 and below 1; got 2"):
        hold_out(Part(rows), 2)
    for nothing in ([], (), {}, ([], [])):
        with refused("validation_split=0.5 of 0 texts leaves no text"):
            hold_out(Part(nothing), 0.5)


def test_labels_and_weights_are_counted_before_they_are_divided():
    texts = ["a", "b", "c", "d"]
    divisions = (
        lambda y, weights: hold_out(Part(texts, y, weights), 0.5),
        lambda y, weights: whole(Part(texts, y, weights), True, 1, 2),
    )
    for divide in divisions:
        for labels in ([1] * 3, [1] * 6):
            with refused(
                f"The number of labels must be 4, the number of texts; got "
                f"{len(labels)}"
            ):
                divide(labels, None)
        for weights in ([1.0] * 3, [1.0] * 6, 2.0):
            with refused("sample_weight must be 4 numbers of at least 0, one"):
                divide([1] * 4, weights)


def test_texts_and_labels_have_an_order(encoder):
    # The keys of a dict are no texts, and a set has no order.
    in_a_list = "Texts or labels must be in a list, a column or a data set; got"
    tagger = load(encoder, "tagger")
    for x in ({"text": ["a b"]}, {"a b", "c"}, frozenset(["a b"])):
        with refused(in_a_list):
            tagger.predict(x)
    model = load(encoder, "classifier")
    for y in ({"a": 0.0, "b": 1.0}, {0.0, 1.0}):
        with refused(in_a_list):
            model.fit(["a", "b"], y)
    # Several labels of one text need none.
    assert sorted(plain_row({"a", "b"}, "example 0")) == ["a", "b"]
    with refused("The labels of example 0 must be a list; got"):
        plain_row({"a": 0, "b": 1}, "example 0")


def test_an_evaluation_does_not_change_what_an_export_takes(encoder):
    model = load(encoder, "classifier")
    pairs, labels = [("a", "b"), ("c", "d")], [0.0, 1.0]
    single = ["a", "b"], labels
    trained(model, pairs, labels, epochs=1, validation_data=single)
    assert model.is_pair
    model.evaluate(*single, verbose=0)
    assert model.is_pair


def test_validation_split_and_weights(encoder):
    model = load(encoder, "classifier")
    x, y, weights = ["a", "b", "c", "d"], [0.0, 1.0, 1.0, 0.0], [1.0, 1, 2, 3]
    options = {"epochs": 1, "sample_weight": weights, "batch_size": 2}
    history = trained(model, x, y, validation_split=0.5, **options).history
    assert int(model.optimizer.iterations) == 1
    found = model.evaluate(x[2:], y[2:], sample_weight=[2.0, 3.0], verbose=0)
    np.testing.assert_allclose(history["val_loss"][0], found["loss"], rtol=1e-5)
    validation = (x[2:], y[2:], [2.0, 3.0])
    history = trained(model, x, y, validation_data=validation, **options)
    assert history.history["val_loss"][0] > 0


@pytest.mark.parametrize(
    "name",
    [pytest.param("classifier", marks=pytest.mark.slow), "masked words"],
)
def test_training_in_two_parts(encoder, name):
    texts, labels = ["a b", "c d", "e"] * 4, [0, 1, 1] * 4
    own = {"dropout": 0.0}
    if name == "masked words":
        labels, own = None, {}
    models = [load(encoder, name, **own) for _ in range(2)]
    trained(models[0], texts, labels, epochs=2)
    models[1].compile(learning_rate=3e-3)
    options = {"batch_size": 4, "verbose": 0, "epochs": 2}
    stop = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, _: setattr(
            models[1], "stop_training", epoch == 0
        )
    )
    models[1].fit(texts, labels, callbacks=[stop], **options)
    models[1].fit(texts, labels, initial_epoch=1, **options)
    assert int(models[1].optimizer.iterations) == 6
    for ours, theirs in zip(
        *(m.trainable_variables for m in models), strict=True
    ):
        np.testing.assert_allclose(
            *map(ops.convert_to_numpy, (ours, theirs)), rtol=1e-4, atol=1e-5
        )


@pytest.mark.slow
@pytest.mark.skipif(not ON_TENSORFLOW, reason="tf.distribute")
def test_two_replicas_equal_one_device(encoder):
    import tensorflow as tf

    strategy = tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )
    found = []
    texts, labels = ["a b", "c d", "e"] * 4, [0, 1, 1] * 4
    for scope in (contextlib.nullcontext, strategy.scope):
        with scope():
            model = load(encoder, "classifier", dropout=0.0)
            # Replicas would clip their parts of the gradients.
            model.compile(keras.optimizers.SGD(0.01))
        options = {"epochs": 2, "batch_size": 4, "verbose": 0}
        # The replicas get 3 and 2 rows of 5.
        odd = texts[:5], labels[:5]
        history = model.fit(texts, labels, validation_data=odd, **options)
        last = model.evaluate(*odd, verbose=0)["loss"]
        with scope():
            inside = model.evaluate(*odd, verbose=0)["loss"]
        found.append([*history.history["val_loss"], last, inside])
    np.testing.assert_allclose(*found, rtol=1e-4)


@pytest.mark.graph
def test_layers_can_be_frozen_between_trainings(encoder):
    model = load(encoder, "classifier")
    trained(model, TEXTS, [0, 1] * 3, epochs=1)
    model.model.bert.trainable = False
    weights = [ops.convert_to_numpy(v) for v in model.model.bert.weights]
    model.fit(TEXTS, [0, 1] * 3, epochs=1, verbose=0)
    for old, new in zip(weights, model.model.bert.weights, strict=True):
        np.testing.assert_array_equal(old, ops.convert_to_numpy(new))
    assert len(model.optimizer._trainable_variables) == 2


# What texts and labels may look like.


def test_features_are_those_of_the_scripts(encoder):
    model = load(encoder, "classifier", max_seq_length=9)
    made = model._features([("a b", "c d e"), ("f", "g")], ["good", "bad"])
    encoding = Encoding(VOCAB, True, None, 9, "single_label", LABELS)
    examples = [
        Example("0", "a b", "c d e", label="good"),
        Example("1", "f", "g", label="bad"),
    ]
    for name, rows in encoding.encode(examples).batch.items():
        np.testing.assert_array_equal(made.arrays[name], rows, name)


def test_answers_in_other_forms(encoder):
    model = load(encoder, "questions")
    for answer in (
        *("b c", b"b c", ("b c", 2), ("b c", np.int64(2))),
        {"text": ["b c"], "answer_start": np.array([2])},
        {"text": "b c", "answer_start": 2},
    ):
        made = model._features([("d", "a b c")], [answer]).arrays
        # [CLS] d [SEP] a b c [SEP]
        assert made["start_positions"] == [4], answer
        assert made["end_positions"] == [5], answer
    for answer in (3, [], ("b", "c"), [{"text": "b"}], {"text": ["b"]}):
        with refused("answer to question 0 must be a string, a pair"):
            model._features([("d", "a b c")], [answer])
    with refused("question 0: the answer is missing"):
        model.fit([("d", "a b c")], [None])
    with refused("question 1 has no answer.* pass with_negative=True"):
        model.fit([("d", "a b c")] * 2, ["a", ""])
    with refused("question 0 has no answer.* pass with_negative=True"):
        model.evaluate([("d", "a b c")], [{"text": [], "answer_start": []}])
    with refused("There are no questions"):
        model.fit([], [])


def test_texts_in_other_forms(encoder):
    model = load(encoder, "classifier")

    def same(x, y=("good", "bad")):
        made = model._features(x, y).arrays
        expected = model._features([("a", "b"), ("c", "d")], ["good", "bad"])
        for name, rows in expected.arrays.items():
            np.testing.assert_array_equal(made[name], rows, name)

    same((["a", "c"], ["b", "d"]))
    same({"text_a": ["a", "c"], "text_b": ["b", "d"]})
    same(np.array([["a", "b"], ["c", "d"]]))
    same([["a", "b"], ["c", "d"]], np.array([1, 0]))
    same([("a", "b"), ("c", "d")], [*np.array([1, 0])])
    same([(b"a", b"b"), (b"c", b"d")], np.array([b"good", b"bad"]))
    model._features(np.array(["a", "b"], object), ["good", "bad"])


@pytest.mark.skipif(not ON_TENSORFLOW, reason="tf.data")
def test_a_teacher_does_not_answer_to_count_steps(encoder, monkeypatch):
    import tensorflow as tf

    model, teacher = (load(encoder, "windows") for _ in range(2))
    answered = []
    answer = type(model)._to_learn
    monkeypatch.setattr(
        type(model),
        "_to_learn",
        lambda self, features: answered.append(1) or answer(self, features),
    )
    texts = tf.data.Dataset.from_tensor_slices(["a b", "c d", "a c"])
    trained(model, texts, teacher=teacher, batch_size=2, epochs=1)
    # For the example from which the step is traced, and for the epoch.
    assert len(answered) == 2


@pytest.mark.skipif(not ON_TENSORFLOW, reason="tf.data")
@pytest.mark.parametrize(
    "batched", [pytest.param(False, marks=pytest.mark.slow), True]
)
def test_a_tf_data_set(encoder, batched):
    import tensorflow as tf

    model = load(encoder, "classifier")
    pairs = (["a", "b", "c"], ["d", "e", "f"])
    data = tf.data.Dataset.from_tensor_slices((pairs, [0, 1, 1]))
    history = model.fit(data.batch(2) if batched else data, epochs=1, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    assert model.is_pair
    for name, texts in (("masked words", pairs[0]), ("embedder", (pairs,))):
        data = tf.data.Dataset.from_tensor_slices(texts)
        other = load(encoder, name)
        scores = other.evaluate(data.batch(2) if batched else data, verbose=0)
        expected = other.evaluate(
            texts if name == "masked words" else pairs, verbose=0
        )
        assert scores == expected
    with refused("There are no texts"):
        model.fit(
            tf.data.Dataset.from_tensor_slices((pairs, [0, 1, 1])).take(0)
        )
    with refused("Labels are missing: pass x and y, or a data set of both"):
        model.fit(tf.data.Dataset.from_tensor_slices(["a"]))
    columns = tf.data.Dataset.from_tensor_slices((["a", "b"], ["b", "c"]))
    with refused(r"got single texts.* must be \(\(a, b\),\) or \(\(a"):
        load(encoder, "embedder").fit(columns)


def test_wrong_inputs(encoder):
    model = load(encoder, "classifier")
    with refused("number of labels must be 1, the number of texts; got 2"):
        model.fit(["a"], ["good", "bad"])
    with refused("Labels are missing"):
        model.fit(["a"])
    with refused("example 0: the label must be one of bad or good; got 'fine'"):
        model.fit(["a"], ["fine"])
    with refused("There are no texts"):
        model.fit([], [])
    with refused("Text 1 must be a string; got 3"):
        model.predict(["a", 3])
    for other in (("c",), "cd", None):
        with refused("Some texts are pairs and others are not"):
            model.predict([("a", "b"), other])
    with refused("pairs of texts; got 3 columns. Pass several texts as a list"):
        model.predict(("a", "b", "c"))
    several = load(encoder, "classifier", problem="multi_label")
    for rows in ([[1]], [[0, 2]], [[1, 0, 1]]):
        with refused("example 0 must be names, or 0 or 1 for each of the 2"):
            several.fit(["a"], rows)
    with refused("Scores must be cosines, from -1 to 1; got 5"):
        load(encoder, "embedder").fit([("a", "b")] * 2, [0.5, 5])
    with refused("top_k must be a positive integer; got 2.5"):
        load(encoder, "masked words").predict("[MASK]", top_k=2.5)
    with refused("The labels of example 0 must be a list; got 'good'"):
        several.fit(["a"], ["good"])
    with refused("single texts, not pairs"):
        load(encoder, "masked words").predict([("[MASK]", "a")])
    with refused("There are no texts with words"):
        load(encoder, "tagger").fit([""], [[]])
    with refused("Expected single texts; got pairs"):
        load(encoder, "embedder").predict([("a", "b")])


def test_a_text_model_is_not_called_on_texts(encoder, kind):
    model = unchanged(encoder, kind)
    for x in ("a", ["a"], ("a", "b"), np.array(["a"]), None):
        with refused(
            r"takes a dict of features.* call fit, evaluate or predict\.$"
        ):
            model(x)
    if keras.backend.backend() != "tensorflow":
        return  # Other backends refuse strings before the model is called.
    model.compile()
    on_tensors = model.train_on_batch, model.test_on_batch
    for act in (*on_tensors, model.predict_on_batch):
        with refused("For texts, call fit, evaluate or predict"):
            act(["good"])


def test_wrong_parameters_and_targets(encoder):
    with refused("max_seq_length must be from 3 to 19"):
        load(encoder, "classifier", max_seq_length=20)
    for kind, x in (("classifier", "a"), ("embedder", "a"), ("tagger", "a")):
        model = load(encoder, kind)
        model.max_seq_length = 20
        with refused("max_seq_length must be from 3 to 19, the model's"):
            model.predict(x)
    with refused("problem must be one of single_label, multi_label or"):
        load(encoder, "classifier", problem="ranking")
    with refused("num_labels must be 2, the number of labels; got 1"):
        load(encoder, "classifier", problem="regression")
    with refused("pooling must be one of pooled, cls, mean or max"):
        load(encoder, "embedder", pooling="sum")
    with refused("text 0 has 2 words, but 1 tags"):
        load(encoder, "tagger").fit(["a b"], [["O"]])
    answerer = load(encoder, "questions")
    with refused("question 0: the text does not contain 'z'"):
        answerer.fit([("a", "b c")], ["z"])
    with refused("question 0: at character 1 the text has ' ', not 'b'"):
        answerer.fit([("a", "b c")], [("b", 1)])
    with refused("question 0: the text does not contain 'z'"):
        answerer.fit([("a", "b c")], [("z", 1)])
    with refused("question 0: at character -1 the text has"):
        answerer.fit([("a", "b c")], [("b", -1)])
    with refused("^`max_seq_length` must .* with `max_query_length=17`, to"):
        load(encoder, "questions", max_query_length=17)
    with refused("doc_stride must be a positive integer; got 0"):
        load(encoder, "questions", doc_stride=0)
    with refused("pass pairs of strings"):
        answerer.predict(["a"])


POSITIVE = "{} must be a positive integer; got {}"
CLASS_WEIGHTS = "must be 'balanced' or a dict of numbers for bad or good"
SAMPLE_WEIGHTS = "sample_weight must be 1 numbers of at least 0, one for"
MISSPELLED = "Did you mean 'good'?"
REFUSED_OPTIONS = [
    ({"epochs": 0}, POSITIVE.format("epochs", "0")),
    ({"epochs": "3"}, POSITIVE.format("epochs", "'3'")),
    ({"batch_size": "8"}, POSITIVE.format("batch_size", "'8'")),
    ({"seed": -1}, "seed must be an integer of at least 0; got -1"),
    ({"initial_epoch": 1.5}, "initial_epoch must be an integer of at least 0"),
    ({"sample_weight": [1.0, 2.0]}, SAMPLE_WEIGHTS),
    ({"sample_weight": [np.nan]}, SAMPLE_WEIGHTS),
    ({"sample_weight": [-1.0]}, SAMPLE_WEIGHTS),
    ({"sample_weight": ["much"]}, SAMPLE_WEIGHTS),
    ({"sample_weight": 3}, SAMPLE_WEIGHTS),
    ({"sample_weight": [10**400]}, SAMPLE_WEIGHTS),
    ({"shuffle": False}, "fit does not accept shuffle"),
    ({"steps_per_epoch": 3}, "steps_per_epoch is for a data set"),
    ({"epoch": 3}, "fit has no option 'epoch'. Did you mean 'epochs'?"),
    ({"workers": 3}, "fit has no option 'workers'"),
    ({"class_weight": {2: 1.0}}, CLASS_WEIGHTS),
    ({"class_weight": {"good": None}}, CLASS_WEIGHTS),
    ({"class_weight": {"good": np.nan}}, CLASS_WEIGHTS),
    ({"class_weight": {"good": -1.0}}, CLASS_WEIGHTS),
    ({"class_weight": {"good": 10**400}}, CLASS_WEIGHTS),
    ({"class_weight": {"good": 0.0, "bad": 0.0}}, CLASS_WEIGHTS),
    ({"class_weight": [1.0]}, CLASS_WEIGHTS),
    ({"class_weight": "equal"}, CLASS_WEIGHTS),
    ({"class_weight": {"god": 2}}, f"got {{'god': 2}}. {MISSPELLED}"),
    ({"y": ["goood"]}, f"bad or good; got 'goood'. {MISSPELLED}"),
]


def test_wrong_options_of_fit(encoder):
    model = load(encoder, "classifier")
    for options, message in REFUSED_OPTIONS:
        with refused(message):
            model.fit(**{"x": ["a"], "y": ["good"], **options})
    with refused("batch_size must be a positive integer; got 0"):
        model.predict(["a"], batch_size=0)
    with refused("optimizer must be an optimizer or its name; got None"):
        model.compile(optimizer=None)
    with refused("class_weight needs one label for each text or word"):
        load(encoder, "embedder").fit([("a", "b")], class_weight={0: 1})


def test_callbacks_that_are_not_keras_callbacks(encoder, kind):
    model = unchanged(encoder, kind)
    x = INPUTS[kind]
    for callbacks in ("x", [3], keras.callbacks.EarlyStopping, [None]):
        with refused(r"callbacks must be a keras\.callbacks\.Callback, or a"):
            model.predict(x, callbacks=callbacks)
    model = load(encoder, "masked words")
    for call in (model.fit, model.evaluate):
        with refused("callbacks must be a keras"):
            call(["a b"], callbacks=[3])


def test_wrong_options_of_validation(encoder):
    data = ["a", "b"], ["good", "bad"]
    for kind in ("classifier", "tagger", "questions"):
        for wrong in (data[0], [*data], (data[0],), (*data, None, None), "a"):
            with refused(r"alidation.data must .* a tuple \(x, y\) or \(x,"):
                load(encoder, kind).fit(*data, validation_data=wrong)
    with refused("There are no texts"):
        load(encoder, "embedder").fit(
            [("a", "b"), ("c", "d")], validation_data=([], None)
        )


def test_integers_that_no_float_can_hold(encoder):
    huge = 10**400
    numbers = load(encoder, "classifier", problem="regression", labels=None)
    with refused("example 0: the label must be a finite number; got 1000"):
        numbers.fit(["a"], [huge])
    with refused("The scores must be numbers; got"):
        load(encoder, "embedder").fit([("a", "b")], [huge])


def test_entities_and_answers_in_numbers(encoder):
    tagger = load(encoder, "tagger")
    gold = [["O", "B-X", "O"], ["B-X"], ["O", "O"]]
    words = [row for row in WORDS if row]
    tags = [tuple(row["tags"]) for row in tagger.predict(words)]
    expected = metrics.entity_scores(gold, tags)
    found = tagger.evaluate(words, gold)
    assert tagger.evaluate(np.array(words, object), gold) == found
    # Keras's loss of one batch is the mean over all words, too.
    by_keras = keras_loss(tagger, words, gold)
    assert found.pop("loss") == pytest.approx(by_keras, rel=1e-5)
    assert found == expected
    for tag in (None, np.nan, 3, "B-Z"):
        with refused("is not one of the labels O, B-X and I-X"):
            tagger.evaluate([["a"]], [[tag]])


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (lambda **x: bert_tf.FullTokenizer([*VOCAB], **x), "do_lower_case"),
    ],
)
def test_a_word_is_not_a_boolean(make, option):
    """Python takes "false" for true."""
    for value in ("false", None, [], 2):
        with refused(f"{option} must be one of True or False; got"):
            make(**{option: value})
    make(**{option: np.True_})


@pytest.mark.parametrize(
    "kind",
    [
        bert_tf.MaskedWordPredictor,
        bert_tf.QuestionAnswerer,
        bert_tf.TextClassifier,
        bert_tf.TextEmbedder,
        bert_tf.TokenTagger,
    ],
)
def test_a_text_model_needs_a_model_and_a_tokenizer(kind):
    tokenizer = bert_tf.FullTokenizer(list(VOCAB))
    for model in ("x", None, CONFIG, tokenizer):
        with refused(f"model must be a {kind.model_class.__name__}; got"):
            kind(model, tokenizer)
    with refused("tokenizer must be a FullTokenizer or a BertTokenizer"):
        bert_tf.TextEmbedder(bert_tf.BertModel(CONFIG), "x")


def test_a_text_model_needs_a_vocabulary(tmp_path):
    bert_tf.BertModel(CONFIG).save_pretrained(tmp_path / "saved")
    with refused("there is no vocab.txt beside the checkpoint. Add it"):
        bert_tf.TextEmbedder.from_pretrained(tmp_path / "saved")


def test_missing_labels_and_wrong_options(encoder):
    model = load(encoder, "classifier")
    with refused("example 1: the label is missing"):
        model.fit(["a", "b"], ["good", None])
    with refused("example 1: the label is missing"):
        model.fit(["a", "b"], [1.0, np.nan])
    with refused("example 1: the label must be one of bad or good; got 0.5"):
        model.fit(["a", "b"], [1.0, 0.5])
    numbers = load(encoder, "classifier", problem="regression", labels=None)
    for number in (np.inf, -np.inf, 1e39, "nan"):
        with refused("example 0: the label must be a finite number; got"):
            numbers.fit(["a"], [number])
    for scores in ([[1.0], [0.0]], [[1.0, 0.0], [0.0]]):
        with refused("The scores must be numbers; got"):
            load(encoder, "embedder").fit([("a", "b")] * 2, scores)
    with refused("question 0: the answer is missing"):
        load(encoder, "questions").fit([("a", "b")], [None])
    tagger = load(encoder, "tagger")
    for learn in (tagger.fit, tagger.evaluate):
        with refused("The labels of text 1 must be a list; got None"):
            learn([["a"], ["a"]], [["O"], None])
    with refused("'max_seq_lenght'. Did you mean 'max_seq_length'"):
        load(encoder, "classifier", max_seq_lenght=9)
    with refused("max_seq_length must be a positive integer; got '9'"):
        load(encoder, "classifier", max_seq_length="9")
    for kind, option in (
        *(("classifier", "is_pair"), ("questions", "with_negative")),
        ("embedder", "normalize"),
    ):
        with refused(f"{option} must be one of True or False; got 'false'"):
            load(encoder, kind, **{option: "false"})
    for kind in ("classifier", "tagger"):
        with refused("The labels must be a list of non-empty names; got 5"):
            load(encoder, kind, labels=5)
    with refused("learning_rate is for optimizer='auto'"):
        model.compile("adam", learning_rate=0.1)
    for value in ("fast", -1.0, 0):
        with refused(f"learning_rate must be a positive number; got {value!r}"):
            model.compile(learning_rate=value)
    for texts in (None, 3):
        with refused(f"in a list, a column or a data set; got {texts}"):
            model.predict(texts)
    with refused("in a list, a column or a data set; got 'good'"):
        model.fit(["a"], "good")
    with refused("number of labels must be 1, the number of texts; got 2"):
        load(encoder, "embedder").evaluate([("a", "b")], [1.0, 0.0])


def test_a_keras_file_is_for_load_model(encoder, tmp_path):
    load(encoder, "embedder").save(tmp_path / "model.keras")
    with refused("use keras.models.load_model"):
        bert_tf.TextEmbedder.from_pretrained(tmp_path / "model.keras")


@pytest.mark.parametrize("marks", [("I", "E", "S"), ("I", "L", "U")])
def test_entities_of_every_scheme_are_scored(encoder, marks):
    """As in run_ner.py, which converts the tags."""
    inside, end, single = (f"{mark}-X" for mark in marks)
    labels = ["O", "B-X", inside, end, single]
    tagger = load(encoder, "tagger", labels=labels)
    gold = [[single, "O", single], ["B-X", inside, end]]
    words = [["a", "b", "c"]] * 2
    tags = [row["tags"] for row in tagger.predict(words)]
    found = tagger.evaluate(words, gold)
    converted = ([*map(to_iob2, rows)] for rows in (gold, tags))
    expected = metrics.entity_scores(*converted)
    assert found == {**expected, **{n: found[n] for n in ("accuracy", "loss")}}
    assert found["accuracy"] == np.mean(np.equal(gold, tags))
    assert "X_f1" in found


def test_a_tagger_returns_the_places_of_words(encoder):
    found = load(encoder, "tagger").predict(["ab  c", " d\tefg ", ""])
    assert [row["starts"] for row in found] == [[0, 4], [1, 3], []]
    assert [row["ends"] for row in found] == [[2, 5], [2, 6], []]


def test_tags_are_the_most_likely(encoder):
    tagger = load(encoder, "tagger")
    tagger.model.output_bias.assign([0.0, 50.0, 0.0])
    [found] = tagger.predict([["a", "b"]])
    assert found["tags"] == ["B-X", "B-X"]
    np.testing.assert_allclose(found["probabilities"], [1, 1], rtol=1e-5)


def test_tags_that_are_no_entities_are_named(encoder, caplog):
    tagger = load(encoder, "tagger", labels=["O", "B-X", "I-X", "[PAD]"])
    with caplog.at_level("WARNING"):
        assert tagger.evaluate([["a"]], [["O"]]).keys() == {"accuracy", "loss"}
    assert "'[PAD]' is neither O nor of the form B-TYPE" in caplog.text


def test_tags_need_not_be_entities(encoder):
    model = load(encoder, "tagger", labels=["NOUN", "VERB"])
    tags = [row["tags"] for row in model.predict([["a", "b"], ["c"]])]
    found = model.evaluate([["a", "b"], ["c"]], tags)
    assert found["accuracy"] == 1.0


def test_validation_data_without_labels(encoder):
    pairs = [("a", "b"), ("c", "d")]
    history = load(encoder, "embedder").fit(
        pairs, validation_data=pairs, epochs=1, verbose=0
    )
    assert np.isfinite(history.history["val_loss"]).all()


# Keras lists the layers that stay as they are, such as layer norms.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Layer .* `quantize`")
def test_an_int8_model_is_saved_and_loaded(encoder, tmp_path):
    model = load(encoder, "classifier")
    trained(model, TEXTS, ["good", "bad"] * 3, epochs=1)
    exact = model.predict(TEXTS)
    model.quantize("int8")
    answers = model.predict(TEXTS)
    found, expected = (
        [a["probabilities"]["good"] for a in each] for each in (answers, exact)
    )
    np.testing.assert_allclose(found, expected, atol=0.1)
    assert found != expected
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert_same(again.predict(TEXTS), answers)
    way = r"before quantize; .* by convert_saved_model\.py --format=onnx --int8"
    with refused(way if ON_TENSORFLOW else "backend"):
        again.export(tmp_path / "export")


def test_the_summary_has_shapes(encoder):
    lines = []
    load(encoder, "classifier").summary(print_fn=lines.append, line_length=99)
    assert "(None, 2)" in "".join(lines)
    assert "?" not in "".join(lines)


@pytest.mark.slow
def test_keras_may_choose_whether_to_compile(encoder):
    model = load(encoder, "classifier")
    expected = model.predict(TEXTS)
    model.compile(learning_rate=1e-9, jit_compile="auto")
    model.fit(TEXTS, ["good", "bad"] * 3, epochs=1, verbose=0)
    assert_same(model.predict(TEXTS), expected)


@pytest.mark.graph
def test_lora_of_a_text_model(encoder, tmp_path):
    """Also with `enable_lora` between two calls of `fit`."""
    path, labels = tmp_path / "lora", ["good", "bad"] * 3
    model = load(encoder, "classifier")
    trained(model, TEXTS, labels, epochs=1)
    again = load(encoder, "classifier")
    again.set_weights(model.get_weights())
    # The graph of this call has no adapters.
    model.predict(TEXTS)
    model.enable_lora(2)
    trained(model, TEXTS, labels, epochs=1)
    answers = model.predict(TEXTS)
    model.save_lora_weights(path)
    again.load_lora_weights(path)
    assert_same(again.predict(TEXTS), answers)
    other = load(encoder, "classifier", labels=LABELS[::-1])
    with pytest.raises(InputError, match=r"labels \['bad', 'good'\]"):
        other.load_lora_weights(path)
    with pytest.raises(InputError, match="Call merge_lora before quantize"):
        model.quantize("int8")
    model.save_pretrained(tmp_path / "saved")
    merged = type(model).from_pretrained(tmp_path / "saved")
    assert_same(merged.predict(TEXTS), answers)
    model.merge_lora()
    assert_same(model.predict(TEXTS), answers)


@pytest.mark.graph
def test_predict_follows_the_variables(encoder, tmp_path):
    """Its graph is traced again when layers get other variables."""
    model = load(encoder, "classifier", max_seq_length=7)
    features = model._features(TEXTS, [0] * len(TEXTS)).arrays
    inputs = {name: features[name] for name in FEATURE_NAMES}
    weights = model.model.output_weights
    weights.assign(ops.convert_to_tensor(weights) * 10)
    before = []

    def assert_current():
        logits = model(inputs)
        answers = [[*x["probabilities"].values()] for x in model.predict(TEXTS)]
        expected = ops.convert_to_numpy(ops.softmax(logits))
        np.testing.assert_allclose(answers, expected, rtol=1e-3)
        # Equal answers would prove nothing.
        assert all(np.abs(x - answers).max() > 1e-2 for x in before[-1:])
        before.append(np.array(answers))

    assert_current()
    model.save_weights(tmp_path / "a.weights.h5")
    model.enable_lora(2)
    generator = np.random.default_rng(3)
    for variable in model.model.bert.trainable_variables:
        variable.assign(generator.normal(size=variable.shape))
    assert_current()
    model.merge_lora()
    model.load_weights(tmp_path / "a.weights.h5")
    assert_current()


def test_lora_of_a_model_without_a_pooler(encoder, tmp_path):
    """Hugging Face's tagger has none, so each model gets another."""
    load(encoder, "tagger").save_pretrained(tmp_path / "base")
    models = []
    for seed in (1, 2):
        keras.utils.set_random_seed(seed)
        models.append(bert_tf.TokenTagger.from_pretrained(tmp_path / "base"))
    models[0].enable_lora(2)
    trained(models[0], ["a b"], [[1, 2]], epochs=1)
    models[0].save_lora_weights(tmp_path / "lora")
    models[1].load_lora_weights(tmp_path / "lora")
    assert_same(*(model.predict(INPUTS["tagger"]) for model in models))
