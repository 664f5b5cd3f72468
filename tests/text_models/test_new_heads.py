"""Checkpoints that do not describe their head, or lack parts of it."""

import functools
import json

import keras
import pytest

import bert_tf
from bert_tf.kinds.classification.task import IDENTITY, SIGMOID
from tests.checkpoints.small_models import CONFIG, VOCAB, refused

pytestmark = pytest.mark.usefixtures("eagerly")
TOKENIZER = bert_tf.FullTokenizer(list(VOCAB))
PAIRS = [("a", "b"), ("c d", "e")]
IS_RANDOM = "is random, since the checkpoint lacks it. Call fit first"


@pytest.fixture
def saved(tmp_path):
    """Writes a model and changes its config.json."""

    def make(model, **changes):
        folder = tmp_path / f"saved{len([*tmp_path.iterdir()])}"
        model.save_pretrained(folder, tokenizer=TOKENIZER)
        path = folder / "config.json"
        values = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps(values))
        return folder

    return make


@pytest.fixture
def one_output(saved):
    model = bert_tf.BertClassifier(CONFIG, num_labels=1)
    return functools.partial(saved, model)


def test_one_output_is_a_number(one_output, tmp_path):
    """As in published cross-encoders, which record no problem."""
    folder = one_output(id2label={"0": "LABEL_0"})
    model = bert_tf.TextClassifier.from_pretrained(folder)
    expected = [row["score"] for row in model.predict(PAIRS)]
    model.save_pretrained(tmp_path / "again")
    config = json.loads((tmp_path / "again" / "config.json").read_text())
    assert config["problem_type"] == "regression"
    model.save(tmp_path / "model.keras")
    for again in (
        bert_tf.TextClassifier.from_pretrained(tmp_path / "again"),
        keras.models.load_model(tmp_path / "model.keras"),
        bert_tf.TextClassifier(model.model, TOKENIZER, max_seq_length=9),
    ):
        found = [row["score"] for row in again.predict(PAIRS)]
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
    model.fit(PAIRS, [0.9, 0.1], verbose=0)


def test_one_output_is_not_a_class(one_output):
    load = bert_tf.TextClassifier.from_pretrained
    with refused('or left out for problem="regression"; got'):
        load(one_output(), labels=["x"])
    [answer] = load(one_output(), problem="multi_label").predict(["a"])
    assert 0 < answer["probabilities"]["LABEL_0"] < 1
    folder = one_output(problem_type="single_label_classification")
    with refused('Pass problem="regression" for a number'):
        load(folder)
    assert "score" in load(folder, problem="regression").predict("a")


@pytest.mark.parametrize(
    "changes",
    [
        {"activation_fn": SIGMOID},
        {"sbert_ce_default_activation_function": SIGMOID},
        {"sentence_transformers": {"activation_fn": SIGMOID, "version": "5"}},
    ],
)
def test_the_activation_of_a_cross_encoder(one_output, tmp_path, changes):
    folder = one_output(**changes)
    load = bert_tf.TextClassifier.from_pretrained
    with refused(f"records the activation_fn {SIGMOID}"):
        load(folder)
    logit = load(folder, problem="regression").predict("a b")["score"]
    share = load(folder, problem="multi_label")
    [found] = share.predict("a b")["probabilities"].values()
    sigmoid = keras.ops.convert_to_numpy(keras.ops.sigmoid(logit))
    assert found == pytest.approx(float(sigmoid), rel=1e-4)
    share.save_pretrained(tmp_path / "again")
    [again] = load(tmp_path / "again").predict("a b")["probabilities"].values()
    assert again == pytest.approx(found, rel=1e-4)
    assert "score" in load(one_output(activation_fn=IDENTITY)).predict("a")


@pytest.mark.parametrize(
    ("text_model", "inner"),
    [
        (bert_tf.TextClassifier, bert_tf.BertClassifier),
        (bert_tf.TokenTagger, bert_tf.BertTokenClassifier),
    ],
)
def test_classes_of_one_name(saved, text_model, inner):
    model = inner(CONFIG, num_labels=3)
    with refused(r"different; got \['x', 'x', 'z'\]. Pass labels="):
        text_model(model, TOKENIZER, ["x", "x", "z"], max_seq_length=9)
    with refused("a list of non-empty names; got"):
        text_model(model, TOKENIZER, ["x", " "], max_seq_length=9)
    folder = saved(model, id2label={"0": "x", "1": "x", "2": "z"})
    with refused("The labels must be different"):
        text_model.from_pretrained(folder)
    # As the message says; the head stays.
    named = text_model.from_pretrained(folder, labels=["a", "b", "c"])
    names, _ = named.model.random_variables or ((), "")
    assert "output_weights" not in names
    assert named.labels == ("a", "b", "c")
    # Without names there is no fault.
    assert inner.from_pretrained(folder).num_labels == 3


def test_a_new_head_has_the_recorded_dropout(saved):
    folder = saved(bert_tf.BertModel(CONFIG), classifier_dropout=0.0)
    for load in (
        functools.partial(bert_tf.BertClassifier.from_pretrained, num_labels=2),
        bert_tf.BertMultipleChoice.from_pretrained,
    ):
        assert load(folder).dropout.rate == 0
        assert load(folder, dropout=0.3).dropout.rate == 0.3


def test_a_random_head_is_reported_until_it_is_trained(saved, tmp_path, caplog):
    folder, (x, y) = saved(bert_tf.BertModel(CONFIG)), ("a", ["y", "x"])
    load = bert_tf.TextClassifier.from_pretrained
    model = load(folder, labels=["x", "y"])
    assert "missing: output_weights" in caplog.text

    def warns(act):
        caplog.clear()
        act()
        return caplog.text.count(IS_RANDOM)

    assert warns(lambda: [model.predict(x) for _ in range(2)]) == 1
    model.save(tmp_path / "random.keras")
    model = keras.models.load_model(tmp_path / "random.keras")
    assert warns(lambda: model.save_pretrained(tmp_path / "random")) == 1
    untrained = keras.models.load_model(tmp_path / "random.keras")
    assert warns(lambda: untrained.evaluate([x], y[:1], verbose=0)) == 1
    model = keras.models.load_model(tmp_path / "random.keras")
    model.fit([x] * 2, y, batch_size=1, verbose=0)
    assert warns(lambda: model.predict(x)) == 0
    model.save(tmp_path / "trained.keras")
    model.save_weights(tmp_path / "trained.weights.h5")
    model.save_pretrained(tmp_path / "trained")
    again = keras.models.load_model(tmp_path / "trained.keras")
    assert warns(lambda: again.predict(x)) == 0
    assert warns(lambda: load(tmp_path / "trained").predict(x)) == 0
    again = load(folder, labels=["x", "y"])
    again.load_weights(tmp_path / "trained.weights.h5")
    assert warns(lambda: again.predict(x)) == 0


def test_masked_words_need_a_trained_head(saved, caplog):
    folder = saved(bert_tf.BertModel(CONFIG))
    with refused("has no masked-LM head. Pass a pre-trained model"):
        bert_tf.MaskedWordPredictor.from_pretrained(folder)
    assert "They are random until trained" in caplog.text
