"""Text models: strings in, answers out, on every backend."""

import contextlib
import dataclasses
import functools
import json

import keras
import numpy as np
import pytest
from keras import ops

import bert_tf
from bert_tf.data.records import INPUTS as FEATURE_NAMES
from bert_tf.kinds.tags.conll_files import to_iob2
from bert_tf.kinds.vectors.task import pair_losses
from bert_tf.tasks import metrics
from bert_tf.tasks.task import divergence
from bert_tf.text_models import fit, predict
from bert_tf.text_models.batches import EvaluationBatches, TrainingBatches
from bert_tf.text_models.inputs import Part, hold_out
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
    "classifier": (bert_tf.TextClassifier, {"labels": LABELS, "dropout": 0.0}),
    "windows": (
        bert_tf.TextClassifier,
        {
            **{"labels": LABELS, "dropout": 0.0},
            **{"doc_stride": 3, "window_pooling": "max"},
        },
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
    "tagger": (bert_tf.TokenTagger, {"labels": TAGS, "dropout": 0.0}),
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


# test_windows_of_an_embedder has the numbers of the slow ones.
SLOW = pytest.param("vectors of windows", marks=pytest.mark.slow)


@pytest.fixture(
    scope="module",
    params=[SLOW if name in SLOW.values else name for name in MODELS],
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


def assert_same(found, expected):
    def compare(x, y):
        if isinstance(x, (float, np.ndarray)):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)
        else:
            assert x == y

    keras.tree.map_structure(compare, found, expected)


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


def test_answers_do_not_depend_on_the_batch(encoder, kind):
    model = unchanged(encoder, kind)
    answers = model.predict(INPUTS[kind])
    assert_same(model.predict(INPUTS[kind][0]), answers[0])
    options = {} if kind == "masked words" else {"batch_size": 1}
    found = model.predict(INPUTS[kind][::-1], **options)
    assert_same(found, answers[::-1])


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
    arguments = {"text": tf.constant(columns)}
    if kind == "questions":
        questions, contexts = map(tf.constant, zip(*columns, strict=True))
        arguments = {"question": questions, "context": contexts}
    outputs = {n: x.numpy() for n, x in function(**arguments).items()}
    if "vector" in outputs:
        np.testing.assert_allclose(outputs["vector"], expected, atol=1e-5)
        return
    text, number = {
        "masked words": ("words", "probabilities"),
        "questions": ("answer", "score"),
        "tagger": ("tags", "probabilities"),
    }.get(kind, ("label", "probability"))
    for row, answer in enumerate(expected):
        part = tuple(slice(n) for n in np.shape(answer[number]))
        np.testing.assert_allclose(
            outputs[number][row][part], answer[number], rtol=1e-4
        )
        theirs = np.char.decode(np.asarray(outputs[text][row]).astype(bytes))
        assert theirs[part].tolist() == answer[text]
        for name in ("start", "end") if kind == "questions" else ():
            assert outputs[name][row] == answer[name]


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


def test_pairs_of_long_texts(encoder):
    model = load(encoder, "vectors of windows", max_seq_length=5, doc_stride=2)
    pairs = [("a b c d e f", "b"), ("c", "d e f g"), ("e", "a b c d e h")]
    cosines = [a @ b for a, b in map(model.predict, map(list, pairs))]
    scores = model.evaluate(pairs, cosines)
    np.testing.assert_allclose([*scores.values()], 1, rtol=1e-5)
    # Training truncates them; validation needs no labels.
    options = {"validation_data": pairs, "epochs": 1, "verbose": 0}
    history = model.fit(pairs, **options).history
    assert np.isfinite([*history["loss"], *history["val_loss"]]).all()


def trained(model, x, y=None, **options):
    options = {"epochs": 6, "batch_size": 4, "verbose": 0, **options}
    model.compile(learning_rate=3e-3)
    return model.fit(x, y, **options)


def test_training_on_windows_is_scored_by_text(encoder):
    model = load(
        encoder, "windows", max_seq_length=7, doc_stride=4, window_pooling="max"
    )
    texts = ["a c", *(" ".join(9 * "ab" + word) for word in "cdcd"), "b d"]
    labels = ["good" if text[-1] == "c" else "bad" for text in texts]
    history = trained(
        *(model, texts, labels), epochs=1, validation_data=(texts, labels)
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


@pytest.mark.graph
def test_a_classifier_learns(encoder):
    model = load(encoder, "classifier")
    texts, labels = ["a b", "c d"] * 8, ["good", "bad"] * 8
    options = {"validation_data": (texts[:2], labels[:2]), "batch_size": 8}
    history = trained(model, texts, labels, epochs=15, **options).history
    assert history["loss"][-1] < history["loss"][0] / 2
    assert {"accuracy", "val_loss", "val_accuracy"} <= history.keys()
    found = model.evaluate(texts, labels, verbose=0)
    assert found["accuracy"] == 1
    np.testing.assert_allclose(found["loss"], history["val_loss"][-1], 1e-3)
    assert [a["label"] for a in model.predict(texts[:2])] == labels[:2]
    # 16 texts in batches of 8, 15 times.
    assert int(model.optimizer.iterations) == 30
    schedule = model.optimizer._learning_rate
    assert (schedule.peak, schedule.num_train_steps) == (3e-3, 30)
    assert schedule.num_warmup_steps == 3
    # Layers can be frozen between two trainings.
    model.model.bert.trainable = False
    weights = [ops.convert_to_numpy(v) for v in model.model.bert.weights]
    model.fit(texts[:2], labels[:2], epochs=1, verbose=0)
    for old, new in zip(weights, model.model.bert.weights, strict=True):
        np.testing.assert_array_equal(old, ops.convert_to_numpy(new))
    assert len(model.optimizer._trainable_variables) == 2


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


def keras_loss(model, x, y):
    features = model._features(x, y)
    return predict.keras_scores(model, features, 8, verbose=0)["loss"]


def logits_of(model, x, y):
    """Returns the features of the rows, and their logits."""
    arrays = model._features(x, y).arrays
    inputs = {name: arrays[name].astype("int32") for name in FEATURE_NAMES}
    return arrays, model(inputs)


@pytest.mark.parametrize("name", ["questions", "tagger"])
def test_weights_of_texts(encoder, name):
    """The loss is the mean over windows, or over words."""
    x, y = {
        # The second context needs several windows.
        "questions": ([("a", "b c"), ("b", CONTEXT)], ["b", "r"]),
        # The second has two rows.
        "tagger": (
            [["a", "b"], [*CONTEXT[:26:2]]],
            [[0, 1], [1, 2] + [0] * 11],
        ),
    }[name]
    model = load(encoder, name, max_seq_length=10)
    weights = np.array([0.5, 3.0])
    found = model.evaluate(x, y, sample_weight=weights, verbose=0)["loss"]
    counts = np.bincount(model._features(x, y).arrays["example_index"])
    assert counts[1] > 1
    if name == "tagger":
        counts = np.array([2, 13])
    losses = [keras_loss(model, [a], [b]) for a, b in zip(x, y, strict=True)]
    expected = (losses * weights * counts).sum() / counts.sum()
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_numbers_are_weighted_and_averaged_by_text(encoder):
    """Whatever the size of the batches."""
    model = load(encoder, "classifier", problem="regression", labels=None)
    x, y = ["a b", "c", "d e f", "e", "f"], [0.5, 8.0, 1.0, 4.0, 2.0]
    errors = np.array([row["score"] for row in model.predict(x)]) - y
    weights = np.array([0.0, 2.0, 0.5, 1.0, 3.0])
    for size in (2, 5):
        scores = model.evaluate(x, y, size, verbose=0)
        assert scores["mae"] == pytest.approx(np.abs(errors).mean(), rel=1e-4)
        assert scores["loss"] == pytest.approx((errors**2).mean(), rel=1e-4)
        scores = model.evaluate(x, y, size, sample_weight=weights, verbose=0)
        expected = (weights * errors**2).mean()
        assert scores["loss"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("kind", "batch_size", "loss"),
    [
        *(("texts", 1, "auto"), ("texts", 12, SPARSE)),
        *(("words", 1, SPARSE), ("words", 12, "auto"), ("windows", 5, "auto")),
    ],
)
def test_weights_multiply_losses(encoder, kind, batch_size, loss):
    """As in Keras: sum(weights * loss) / number of texts, or of words."""
    weights = np.array([0.5, 100.0])
    if kind == "words":
        model = load(encoder, "tagger", labels=["O", "X"])
        x, y = [["a", "b"], ["c", "d"]] * 3, [[0, 1], [1, 1]] * 3
    else:
        # Each text has two windows.
        windows = {"max_seq_length": 5, "doc_stride": 1}
        options = windows if kind == "windows" else {}
        model = load(encoder, "classifier", **options)
        x, y = ["a b c d", "e f g h", "d c b a"] * 2, [0, 1, 1] * 2
    of_texts = np.array([1.0, 3.0, 0.5, 2.0, 0.0, 1.0])
    arrays, logits = logits_of(model, x, y)
    logits = ops.convert_to_numpy(ops.log_softmax(logits))
    labels = arrays["label_ids"][..., np.newaxis]
    losses = -np.take_along_axis(logits, labels, -1) * weights[labels]
    losses = losses.T * of_texts[arrays["example_index"]]
    is_counted = arrays.get("label_mask", np.ones(losses.shape[1])) > 0
    model.compile(keras.optimizers.SGD(0.0), loss)
    history = model.fit(
        *(x, y, batch_size),
        epochs=1,
        class_weight=dict(enumerate(weights)),
        sample_weight=of_texts,
        verbose=0,
    )
    expected = losses.T[is_counted].mean()
    assert history.history["loss"] == [pytest.approx(expected, rel=1e-5)]


def own_loss(rows, logits):
    """A user's loss, which gets rows as they are given."""
    return -ops.sum(rows * ops.log_softmax(logits), axis=-1)


ROWS = keras.losses.CategoricalCrossentropy(from_logits=True)
FOCAL = keras.losses.CategoricalFocalCrossentropy(from_logits=True)


@pytest.mark.parametrize(
    ("loss", "form"),
    [
        *((ROWS, "names"), (ROWS, "shares"), (FOCAL, "tags")),
        *(("mse", "names"), (own_loss, "rows"), (SPARSE, "rows")),
    ],
)
def test_losses_get_labels_in_their_form(encoder, loss, form):
    """Labels [B] and logits [B, C] would be broadcast where B equals C."""
    model = unchanged(encoder, "classifier")
    x, rows = ["a b", "c"], np.eye(2)[[1, 0]]
    y = ["good", "bad"] if form == "names" else rows
    if form == "shares":
        y = rows = np.array([[0.25, 0.75], [0.5, 0.5]])
    if form == "tags":
        model = load(encoder, "tagger", labels=["O", "X"], max_seq_length=4)
        x, y, rows = [["a", "b"]] * 2, [[0, 1]] * 2, [np.eye(2)[[0, 0, 1, 0]]]
    # The weights stay as they are.
    model.compile(keras.optimizers.SGD(0.0), loss)
    compare = ROWS if loss is SPARSE else keras.losses.get(loss)
    compare = getattr(compare, "fn", compare)
    if loss in (ROWS, FOCAL, SPARSE):
        compare = functools.partial(compare, from_logits=True)
    _, logits = logits_of(model, x, y)
    rows = ops.broadcast_to(ops.cast(rows, "float32"), logits.shape)
    expected = ops.convert_to_numpy(compare(rows, logits))
    expected = expected[:, 1:3] if form == "tags" else expected
    weights = np.array([0.5, 3.0])
    history = model.fit(*(x, y, 2, 1), sample_weight=weights, verbose=0).history
    expected = (expected.T * weights).mean()
    assert history["loss"] == [pytest.approx(expected, rel=1e-4)]


@pytest.mark.graph
def test_each_training_has_its_own_class_weights(encoder):
    """A training reuses the compiled step of the previous one."""
    model = load(encoder, "classifier")
    model.compile(keras.optimizers.SGD(0.1))
    options = {"batch_size": 2, "epochs": 1, "verbose": 0}
    found = [model.predict("a b")["probabilities"]["good"]]
    for weights in ({"bad": 0.0}, {"good": 0.0}):
        y = ["good", "bad"]
        model.fit(["a b"] * 2, y, class_weight=weights, **options)
        found.append(model.predict("a b")["probabilities"]["good"])
    assert found[0] < found[1] > found[2]


def learned(student, teacher, weight, texts, labels):
    """The features that a student learns from."""
    student._teacher = fit.Teacher(student, teacher, weight, 1.0)
    batches = student._training_data(Part(texts, labels), 8, 0, None)
    student._teacher = None
    [features] = batches.parts()
    return features


def test_texts_without_labels_have_a_teacher(encoder):
    model, teacher = (load(encoder, "classifier") for _ in range(2))
    teacher.model.output_bias.assign([1.0, -1.0])
    logits = [
        ops.log(ops.array([[*row["probabilities"].values()] for row in rows]))
        for rows in (x.predict(TEXTS) for x in (teacher, model))
    ]
    expected = ops.convert_to_numpy(divergence(*logits, 2.0)).mean()
    model.compile(keras.optimizers.SGD(0.003))
    options = {"teacher": teacher, "batch_size": 8, "verbose": 0}
    loss = model.fit(TEXTS, distillation_weight=1.0, **options).history["loss"]
    assert loss[0] == pytest.approx(expected, rel=1e-3)
    assert loss[-1] < loss[0]
    # Texts without labels have no part in the loss of the labels.
    some = ["good", None, "bad", None, None, None]
    features = learned(model, teacher, 0.5, TEXTS, some)
    assert model._label_ids(features).tolist() == [1, 0]
    losses = {}
    for weight in (0.0, 1.0):
        features = learned(model, teacher, weight, TEXTS, some)
        x, y, weights = model._arguments(True, features.arrays)
        teacher_logits = x["teacher_logits"]
        losses[weight] = float(
            model.compute_loss(x, y, teacher_logits, weights, training=True)
        )
    chosen = -ops.convert_to_numpy(logits[0])[[0, 2], [1, 0]]
    assert losses[0.0] == pytest.approx(chosen.mean(), rel=1e-4)
    assert losses[1.0] == pytest.approx(0, abs=1e-6)
    balanced = Part(TEXTS, ["good"] * 3 + [None] * 3)
    model._teacher = fit.Teacher(model, teacher)
    model._training_data(balanced, 8, 0, "balanced")
    model._teacher = None
    np.testing.assert_allclose(model._training_task.class_weights, [0, 1])


@pytest.mark.parametrize(
    ("problem", "doc_stride"),
    [("single_label", 3), ("multi_label", None), ("regression", 3)],
)
def test_missing_labels_are_not_scored(encoder, problem, doc_stride):
    """Metrics compare with the teacher's answers, validation ignores them."""
    names = {"labels": None} if problem == "regression" else {}
    student = load(
        encoder, "classifier", problem=problem, doc_stride=doc_stride, **names
    )
    texts = [CONTEXT, "a b", "c d", "b d"]
    known = {
        "single_label": ["good", [0.25, 0.75]],
        "multi_label": [[0, 1]],
        "regression": [2.0],
    }
    student.compile(optimizer=keras.optimizers.SGD(0.0))
    for label in known[problem]:
        labels = [None, label, float("nan"), label]
        # The student is its own teacher, and does not change.
        features = learned(student, student, 0.5, texts, labels)
        _, targets, _ = student._arguments(True, features.arrays)
        is_labeled = features.arrays["is_labeled"]
        expected = features.arrays["teacher_logits"][~is_labeled]
        found = targets[~is_labeled]
        if problem == "multi_label":
            expected = expected > 0
        elif problem == "single_label":
            expected = expected.argmax(axis=-1)
            found = found.argmax(axis=-1) if found.ndim == 2 else found
        np.testing.assert_array_equal(found, expected)
    history = student.fit(
        *(texts, labels, 4, 1),
        teacher=student,
        validation_data=(texts, labels),
        verbose=0,
    ).history
    scores = student.evaluate(texts[1::2], [label] * 2, verbose=0)
    for name, value in scores.items():
        [other] = history[f"val_{name}"]
        assert other == pytest.approx(value, 1e-5, nan_ok=True), name


def test_epochs_have_every_row_once(encoder):
    model = load(encoder, "classifier")
    texts, y = ["a", "b c", "d"] * 6 + ["e"], [0, 1, 1] * 6 + [0]
    features = model._features(texts, y)
    batches = TrainingBatches(lambda: [features], 5, 4, 5, lambda batch: batch)
    orders = []
    for epoch in range(3):
        batches.epoch = epoch
        steps = [batches[index] for index in range(5)]
        assert [len(step["input_ids"]) for step in steps] == [4, 4, 4, 4, 3]
        numbers = [step["step"] for step in steps]
        assert numbers == [*range(5 * epoch, 5 * epoch + 5)]
        rows = np.concatenate([step["example_index"] for step in steps])
        assert sorted(rows) == [*range(19)]
        labels = np.concatenate([step["label_ids"] for step in steps])
        assert labels.tolist() == [y[row] for row in rows]
        orders.append(rows)
    assert (orders[0] != orders[1]).any()


def test_the_last_part_is_held_out(encoder):
    rows = ["a", "b", "c", "d", "e"]
    for x, first, last in (
        (np.array(rows), rows[:4], rows[4:]),
        ((rows, rows), (rows[:4], rows[:4]), (rows[4:], rows[4:])),
        ({"a": rows}, {"a": rows[:4]}, {"a": rows[4:]}),
    ):
        kept, held_out = hold_out(Part(x, [1, 2, 3, 4, 5]), 0.2)
        assert kept == (first, [1, 2, 3, 4], None)
        assert held_out == (last, [5], None)
    model = load(encoder, "classifier")
    x, y, weights = rows[:4], [0.0, 1.0, 1.0, 0.0], [1.0, 1, 2, 3]
    history = trained(
        *(model, x, y),
        **{"epochs": 1, "sample_weight": weights, "batch_size": 2},
        validation_split=0.5,
    ).history
    assert int(model.optimizer.iterations) == 1
    found = model.evaluate(x[2:], y[2:], sample_weight=[2.0, 3.0], verbose=0)
    np.testing.assert_allclose(history["val_loss"][0], found["loss"], rtol=1e-5)


def test_an_evaluation_does_not_change_what_an_export_takes(encoder):
    model = load(encoder, "classifier")
    pairs, labels = [("a", "b"), ("c", "d")], [0.0, 1.0]
    single = ["a", "b"], labels
    trained(model, pairs, labels, epochs=1, validation_data=single)
    assert model.is_pair
    model.evaluate(*single, verbose=0)
    assert model.is_pair


def test_training_in_two_parts(encoder):
    texts = ["a b", "c d", "e"] * 2
    models = [load(encoder, "masked words") for _ in range(2)]
    trained(models[0], texts, epochs=2)
    models[1].compile(learning_rate=3e-3)
    options = {"batch_size": 4, "verbose": 0, "epochs": 2}
    stop = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, _: setattr(
            models[1], "stop_training", epoch == 0
        )
    )
    models[1].fit(texts, callbacks=[stop], **options)
    models[1].fit(texts, initial_epoch=1, **options)
    assert int(models[1].optimizer.iterations) == 4
    weights = (model.get_weights() for model in models)
    for ours, theirs in zip(*weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


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
            model = load(encoder, "classifier")
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


def test_answers_in_other_forms(encoder):
    model = unchanged(encoder, "questions")
    for answer in (
        *("b c", b"b c", ("b c", 2), ("b c", np.int64(2))),
        {"text": ["b c"], "answer_start": np.array([2])},
        {"text": "b c", "answer_start": 2},
    ):
        made = model._features([("d", "a b c")], [answer]).arrays
        # [CLS] d [SEP] a b c [SEP]
        assert made["start_positions"] == [4], answer
        assert made["end_positions"] == [5], answer


def test_texts_in_other_forms(encoder):
    model = load(encoder, "classifier")

    def same(x, y=("good", "bad")):
        made = model._features(x, y).arrays
        expected = model._features([("a", "b"), ("c", "d")], ["good", "bad"])
        for name, rows in expected.arrays.items():
            np.testing.assert_array_equal(made[name], rows, name)

    same((["a", "c"], ["b", "d"]))
    same({"text_a": ["a", "c"], "text_b": ["b", "d"]})
    same([["a", "b"], ["c", "d"]], np.array([1, 0]))
    same(np.array([["a", "b"], ["c", "d"]]), [*np.array([1, 0])])
    same([(b"a", b"b"), (b"c", b"d")], np.array([b"good", b"bad"]))
    model._features(np.array(["a", "b"], object), ["good", "bad"])


@pytest.mark.skipif(not ON_TENSORFLOW, reason="tf.data")
def test_a_tf_data_set(encoder):
    import tensorflow as tf

    make = tf.data.Dataset.from_tensor_slices
    model, pairs = load(encoder, "classifier"), ([*"abc"], [*"def"])
    rows = make((pairs, [0, 1, 1]))
    history = model.fit(rows.batch(2), epochs=1, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    assert model.is_pair
    for name, texts in (("masked words", pairs[0]), ("embedder", (pairs,))):
        other = load(encoder, name)
        scores = other.evaluate(make(texts).batch(2), verbose=0)
        texts = texts if name == "masked words" else pairs
        assert scores == other.evaluate(texts, verbose=0)
    with refused("There are no texts"):
        model.fit(rows.take(0))
    with refused("Labels are missing: pass x and y, or a data set of both"):
        model.fit(make(["a"]))
    with refused(r"got single texts.* must be \(\(a, b\),\) or \(\(a"):
        other.fit(make(pairs))


def test_scores_and_places_of_tags(encoder):
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
    found = tagger.predict(["ab  c", " d\tefg ", ""])
    assert [row["starts"] for row in found] == [[0, 4], [1, 3], []]
    assert [row["ends"] for row in found] == [[2, 5], [2, 6], []]
    tagger.model.output_bias.assign([0.0, 50.0, 0.0])
    [found] = tagger.predict([["a", "b"]])
    assert found["tags"] == ["B-X", "B-X"]
    np.testing.assert_allclose(found["probabilities"], [1, 1], rtol=1e-5)


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


def test_tags_that_are_no_entities_are_named(encoder, caplog):
    tagger = load(encoder, "tagger", labels=["O", "B-X", "I-X", "[PAD]"])
    with caplog.at_level("WARNING"):
        assert tagger.evaluate([["a"]], [["O"]]).keys() == {"accuracy", "loss"}
    assert "'[PAD]' is neither O nor of the form B-TYPE" in caplog.text


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


def test_lora_of_a_text_model(encoder, tmp_path):
    """Also with `enable_lora` between two calls of `fit`."""
    path, labels = tmp_path / "lora", ["good", "bad"] * 3
    model = load(encoder, "classifier")
    trained(model, TEXTS, labels, epochs=1)
    again = load(encoder, "classifier")
    again.set_weights(model.get_weights())
    model.enable_lora(2)
    trained(model, TEXTS, labels, epochs=1)
    answers = model.predict(TEXTS)
    model.save_lora_weights(path)
    again.load_lora_weights(path)
    assert_same(again.predict(TEXTS), answers)
    model.save_pretrained(tmp_path / "saved")
    merged = type(model).from_pretrained(tmp_path / "saved")
    assert_same(merged.predict(TEXTS), answers)
    model.merge_lora()
    assert_same(model.predict(TEXTS), answers)


@pytest.mark.graph
def test_predict_follows_the_variables(encoder, tmp_path):
    """Its graph is traced again when layers get other variables."""
    model = load(encoder, "classifier", max_seq_length=7)
    weights = model.model.output_weights
    weights.assign(ops.convert_to_tensor(weights) * 10)
    before = []

    def assert_current():
        _, logits = logits_of(model, TEXTS, [0] * len(TEXTS))
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
