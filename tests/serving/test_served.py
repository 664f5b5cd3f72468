"""Served classes, vectors and words equal the scripts'."""

import dataclasses
import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text  # noqa: F401 (for the op of the tokenizer)

from bert_tf.data.records import INPUTS
from bert_tf.errors import InputError
from bert_tf.kinds.classification.graph import ServedMultipleChoice
from bert_tf.kinds.masked_words.job import fill
from bert_tf.kinds.vectors.features import choose_layers, vectors
from bert_tf.kinds.vectors.features_job import ServedEncoder
from bert_tf.modeling.encoder import BertModel
from bert_tf.modeling.heads import (
    BertClassifier,
    BertMultipleChoice,
    BertPretrainer,
)
from bert_tf.serving.served import (
    BATCH_SIZE,
    MAX_TEXT_BYTES,
    Names,
    ServedMaskedLM,
    in_batches,
)
from bert_tf.tasks import predictions
from bert_tf.tasks.encoding import Encoding
from bert_tf.tasks.examples import Example
from bert_tf.tasks.masked_words import MaskedWordsTask, MaskEncoding
from bert_tf.tasks.predictions import THRESHOLD
from tests.serving import small_exports
from tests.serving.small_served import (
    CONFIG,
    ENCODING,
    LENGTH,
    NASTY,
    VOCAB,
    answer,
    answer_tokens,
    assert_likeliest,
    random_weights,
    served_classifier,
    text_of,
    tokenize,
)

pytestmark = pytest.mark.usefixtures("eagerly")

LABELS = ("no", "yes, of course", "可能")
NUM_CHOICES = 3
TOP_K = 3


def features_of(examples, problem="regression", labels=(), num_choices=0):
    encoding = Encoding(
        **vars(ENCODING),
        problem=problem,
        labels=labels,
        num_choices=num_choices,
    )
    batch = encoding.encode(examples).batch
    return {name: batch[name] for name in INPUTS}


def check(served, texts, features, expected):
    """Compares all signatures with the script's features and float outputs."""
    answers = answer(served, texts)
    for found in (answers, answer_tokens(served, features)):
        for name, values in expected.items():
            assert found[name].dtype == np.float32
            atol = 1e-4 * max(1, np.ptp(values))
            np.testing.assert_allclose(found[name], values, atol=atol)
            # Equal answers would prove nothing.
            assert np.std(values, axis=0).mean() > 0.01
    seen = tokenize(served, texts)
    for name in INPUTS:
        np.testing.assert_array_equal(seen[name], features[name])
    vocab = np.array([token.encode() for token in VOCAB], object)
    np.testing.assert_array_equal(seen["tokens"], vocab[seen["input_ids"]])
    # Padding changes nothing, and no texts give no answers.
    lengths = np.sum(features["input_mask"], axis=-1)
    row = lengths.reshape(len(lengths), -1).max(axis=1).argmin()
    alone = answer(served, {k: v[row : row + 1] for k, v in texts.items()})
    nothing = {
        name: np.empty([0, *spec.shape[1:]], object)
        for name, spec in served.inputs.items()
    }
    none = answer(served, nothing)
    for name, values in answers.items():
        if name in expected:
            np.testing.assert_allclose(alone[name][0], values[row], atol=1e-4)
        assert none[name].shape == (0, *alone[name].shape[1:])
    assert len(tokenize(served, nothing)["tokens"]) == 0
    assert {len(v) for v in answer(served, served.example).values()} == {2}
    return answers


@pytest.mark.parametrize(
    ("problem", "is_pair"),
    [
        ("single_label", True),
        ("regression", False),
        pytest.param("single_label", False, marks=pytest.mark.slow),
        pytest.param("regression", True, marks=pytest.mark.slow),
        pytest.param("multi_label", False, marks=pytest.mark.slow),
    ],
)
def test_classes_are_those_of_the_script(problem, is_pair):
    labels = () if problem == "regression" else LABELS
    model = random_weights(BertClassifier(CONFIG, max(1, len(labels))))
    served = served_classifier(model, labels, problem, is_pair)
    rows = [*itertools.product(NASTY, repeat=1 + is_pair)][:: 1 + 6 * is_pair]
    examples = [
        Example(str(number), *map(text_of, row))
        for number, row in enumerate(rows)
    ]
    texts = dict(zip(served.inputs, zip(*rows, strict=True), strict=True))
    features = features_of(examples, problem, labels)
    logits = model(features)["logits"]
    expected = np.array(predictions.probabilities(problem, logits))
    name = "score" if problem == "regression" else "probabilities"
    answers = check(served, texts, features, {name: expected})
    if problem == "regression":
        assert list(answers) == ["score"]
        return
    names = np.array([label.encode() for label in LABELS], object)
    assert (answers["labels"] == names).all()
    if problem == "multi_label":
        is_clear = np.abs(expected - THRESHOLD) > 1e-3
        decided = predictions.decide(problem, expected)
        present = answers["is_present"]
        np.testing.assert_array_equal(present[is_clear], decided[is_clear])
        assert {*present[is_clear].tolist()} == {False, True}
        return
    chosen = (answers["label"][:, np.newaxis] == names).argmax(axis=1)
    assert_likeliest(chosen, expected)
    best = answers["probabilities"].max(axis=1)
    np.testing.assert_array_equal(answers["probability"], best)


@pytest.mark.parametrize(
    ("is_pair", "length", "stride"),
    [
        (True, LENGTH, 5),
        (False, LENGTH, 5),
        (True, 5, 1),
    ],
)
def test_windows_are_those_of_the_script(is_pair, length, stride):
    model = random_weights(BertClassifier(CONFIG, 1))
    options = {"max_seq_length": length, "doc_stride": stride}
    served = served_classifier(model, (), "regression", is_pair, **options)
    texts = [text for text in NASTY if len(text) < 700]
    rows = [*itertools.product(texts, repeat=1 + is_pair)][:: 1 + 4 * is_pair]
    examples = [Example("", *map(text_of, row)) for row in rows]
    batch = served.encoding.encode(examples).batch
    inputs = dict(zip(served.inputs, zip(*rows, strict=True), strict=True))
    seen = tokenize(served, inputs)
    counts = batch["num_windows"][batch["window_numbers"] == 0]
    assert counts.max() > 9
    assert seen["num_windows"].tolist() == counts.tolist()
    is_window = np.arange(counts.max()) < counts[:, np.newaxis]
    for name in INPUTS:
        np.testing.assert_array_equal(seen[name][is_window], batch[name])
    logits = model({name: batch[name] for name in INPUTS})["logits"][:, 0]
    begins = np.cumsum(counts) - counts
    expected = np.add.reduceat(np.array(logits), begins) / counts
    found = answer(served, inputs)["score"]
    np.testing.assert_allclose(found, expected, atol=1e-4)
    nothing = {name: np.empty(0, object) for name in served.inputs}
    assert len(tokenize(served, nothing)["num_windows"]) == 0
    assert answer(served, nothing)["score"].shape == (0,)


def test_choices_are_those_of_the_script():
    model = random_weights(BertMultipleChoice(CONFIG))
    served = ServedMultipleChoice(model, ENCODING, NUM_CHOICES)
    choices = [np.roll(NASTY, n + 1)[:NUM_CHOICES].tolist() for n in range(22)]
    examples = [
        Example("", text_of(text), choices=tuple(map(text_of, row)))
        for text, row in zip(NASTY, choices, strict=True)
    ]
    features = features_of(
        examples, "multiple_choice", tuple("012"), NUM_CHOICES
    )
    logits = model(features)["logits"]
    expected = predictions.probabilities("multiple_choice", logits)
    texts = {"context": NASTY, "choices": choices}
    expected = {"probabilities": np.array(expected)}
    answers = check(served, texts, features, expected)
    assert_likeliest(answers["choice"], expected["probabilities"])
    assert len(set(answers["choice"])) == NUM_CHOICES
    best = answers["probabilities"].max(axis=1)
    np.testing.assert_array_equal(answers["probability"], best)
    chosen = zip(choices, answers["choice"], strict=True)
    # Servers send texts as JSON, which has no invalid UTF-8.
    expected = [text_of(row[n]).encode() for row, n in chosen]
    assert answers["choice_text"].tolist() == expected


@functools.cache
def encoder():
    return random_weights(BertModel(CONFIG, output_hidden_states=True))


EXAMPLES = [Example("", text_of(text)) for text in NASTY]


def test_embeddings_are_those_of_the_script():
    features = features_of(EXAMPLES)
    outputs = encoder()(features)
    mask, last = features["input_mask"], choose_layers("-1", CONFIG)
    expected = {
        "pooled_output": np.array(outputs["pooled_output"]),
        "mean": np.array(vectors(outputs, mask, last, "mean")["-1"]),
    }
    served = ServedEncoder(encoder(), ENCODING)
    answers = check(served, {"text": NASTY}, features, expected)
    assert answers.keys() == expected.keys()


def test_embeddings_are_float32_under_any_policy():
    served = ServedEncoder(BertModel(CONFIG, dtype="bfloat16"), ENCODING)
    features = {name: tf.ones([2, 3], tf.int32) for name in INPUTS}
    for values in served.answer_tokens(features).values():
        assert values.dtype == tf.float32
        assert values.shape == (2, CONFIG.hidden_size)


def test_tokens_without_pooling():
    """Each has its name, and padding is empty."""
    choices = choose_layers("sum_all,0", CONFIG)
    choose = functools.partial(vectors, choices=choices, pooling="none")
    served = ServedEncoder(encoder(), ENCODING, choose)
    answers = answer(served, {"text": NASTY})
    features = features_of(EXAMPLES)
    mask = features["input_mask"]
    expected = choose(encoder()(features), mask)
    assert answers.pop("num_tokens").tolist() == mask.sum(axis=1).tolist()
    tokens = np.array(VOCAB)[features["input_ids"]]
    tokens = np.where(mask > 0, np.char.encode(tokens, "utf-8"), b"")
    assert answers.pop("tokens").tolist() == tokens.tolist()
    assert answers.keys() == choices.keys()
    for name, values in answers.items():
        masked = np.where(mask[..., np.newaxis] > 0, expected[name], 0)
        np.testing.assert_allclose(values, masked, atol=1e-4)


@pytest.fixture(scope="module")
def filling():
    # A model with more positions than `ENCODING` uses.
    config = dataclasses.replace(CONFIG, max_position_embeddings=99)
    model = random_weights(BertPretrainer(config))
    return ServedMaskedLM(model, ENCODING, TOP_K)


def assert_words(answers, row, filling, text):
    """Compares the words of a text with fill_mask.py's.

    Words that are almost equally likely may change places.
    """
    model, encoding = filling.model, MaskEncoding(**vars(ENCODING))
    task = MaskedWordsTask(model.config, encoding, top_k=len(VOCAB))
    expected = fill(model, task, text).blanks
    count = len(expected)
    assert answers["num_blanks"][row] == count
    for words, chances, candidates in zip(
        answers["words"][row, :count],
        answers["probabilities"][row, :count],
        expected,
        strict=True,
    ):
        of_words = [dict(candidates)[word.decode()] for word in words]
        best = [chance for _, chance in candidates[:TOP_K]]
        assert len(set(words)) == TOP_K
        np.testing.assert_allclose(chances, best, atol=1e-4)
        np.testing.assert_allclose(chances, of_words, atol=1e-4)
    assert (answers["words"][row, count:] == b"").all()
    assert (answers["probabilities"][row, count:] == 0).all()


def test_words_are_those_of_the_script(filling):
    """Only `[MASK]` is a mask, anywhere in a text; others have no words."""
    sentence = b"the cat sat on "
    texts = [
        b"e\xcc\x81 \xff[MASK]\xe4\xb8\xad",
        b"[MASK] \xf0\x9f\xa4\x97[MASK][MASK]",
        b"the[mask[MASK]!",
        b"[[MASK]]",
        b"[MASK] " + sentence * 307,
        b"[MASK] " * (LENGTH - 2) + sentence,
    ]
    unmasked = [b"[ MASK] cat", b"[MA\xc3SK]", b""]
    answers = answer(filling, {"text": [*texts, *unmasked]})
    for row, text in enumerate(texts):
        assert_words(answers, row, filling, text_of(text))
    assert answers["num_blanks"].dtype == np.int32
    # Invalid bytes are dropped before the tokenizer reads a text.
    assert answers["num_blanks"].tolist() == [
        *(1, 3, 1, 1, 1, LENGTH - 2),
        *(0, 1, 0),
    ]
    seen = tokenize(filling, {"text": [*texts, *unmasked]})
    from_tokens = answer_tokens(filling, seen)
    chances = from_tokens["probabilities"]
    np.testing.assert_allclose(chances, answers["probabilities"], atol=1e-4)
    for call in (answer, tokenize):
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match=rf"A \[MASK\] is beyond max_seq_length, {LENGTH} tokens",
        ):
            call(filling, {"text": [b"[MASK]", sentence * 99 + b"[MASK]"]})
    for texts in ([], NASTY):
        none = answer(filling, {"text": texts})
        assert not none["num_blanks"].any()
        assert none["words"].shape == (len(texts), 0, TOP_K)


def test_top_k_is_at_most_the_vocabulary(filling):
    served = ServedMaskedLM(filling.model, ENCODING, 10_007)
    answers = answer(served, {"text": [b"the [MASK]"]})
    words = answers["words"][0, 0].tolist()
    assert sorted(words) == sorted(token.encode() for token in VOCAB)
    total = answers["probabilities"][0, 0].sum()
    assert total == pytest.approx(1, abs=1e-5)


def test_names_are_looked_up_by_number(tmp_path):
    """Tables skip blank lines; Google's Chinese vocabulary has one."""
    names = Names(("no", "", " yes, 可能 ", "\ud83e"), tmp_path / "labels.txt")
    found = names(tf.constant([[2, 0], [1, -1], [3, 99]])).numpy()
    expected = [[" yes, 可能 ".encode(), b"no"], [b"", b""], [b"?", b""]]
    assert found.tolist() == expected
    for name in ("a\nb", "a\r", "\u2028"):
        with pytest.raises(InputError, match=r"labels\.txt: name .* lines"):
            Names(["no", name], tmp_path / "labels.txt")


@functools.cache
def graph_of(kind):
    """Returns a graph that accepts any shape, as a server does."""
    served = small_exports.served(kind)
    read = tf.function(lambda **texts: served.tokenize(texts))
    return read.get_concrete_function(**served.inputs)


def refused(kind, message, **texts):
    texts = {name: tf.constant(x, tf.string) for name, x in texts.items()}
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        graph_of(kind)(**texts)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("context", "choices", "message"),
    [
        ([], [["a"] * 4], "choices of shape [0,4], a row for each context. "),
        (["a"], [["a"] * 2], "each context. Received: [1,2]"),
        ([["a"]], [["a"] * 4], "context of shape [1]. Received: [1,1]"),
    ],
)
def test_refuses_inputs_of_other_shapes(context, choices, message):
    refused("choices", message, context=context, choices=choices)


SLOW_KINDS = ("answers", "pairs", "tags", "vectors")


@pytest.mark.parametrize(
    "kind",
    ["choices", *(pytest.param(x, marks=pytest.mark.slow) for x in SLOW_KINDS)],
)
def test_every_model_checks_its_inputs(kind):
    example = small_exports.served(kind).example
    for name, rows in example.items():
        refused(kind, "of shape [", **{**example, name: [rows]})
        texts = np.array(rows, object)
        texts.flat[-1] = "é" + " " * (MAX_TEXT_BYTES - 2)
        asked = {**example, name: texts}
        graph_of(kind)(**{key: tf.constant(x) for key, x in asked.items()})
        texts.flat[-1] += " "
        message = f"Expected {name} of at most 100,000 bytes"
        refused(kind, message, **asked)


@pytest.mark.slow
def test_refuses_a_mask_of_another_shape():
    """TensorFlow's kernels crashed the process for the empty mask."""
    loaded = tf.saved_model.load(str(small_exports.path_of("pairs")))
    for shape in ((0, 0), (2, 4), (3, 5)):
        features = dict.fromkeys(INPUTS, tf.ones([2, 5], tf.int32))
        features["input_mask"] = tf.ones(shape, tf.int32)
        with pytest.raises(tf.errors.InvalidArgumentError, match="reshape"):
            loaded.signatures["tokens"](**features)


def test_batches_limit_the_memory():
    sizes = []

    def compute(features):
        ids = features["input_ids"]
        tf.py_function(lambda x: sizes.append(len(x)), [ids], [])
        return {"negative": -ids, "not_wanted": ids}

    ids = tf.reshape(tf.range(5 * (3 * BATCH_SIZE + 7)), [-1, 5])
    done = in_batches(compute, {"input_ids": ids}, {"negative": ids[:0]})
    assert done.keys() == {"negative"}
    np.testing.assert_array_equal(done["negative"], -ids)
    assert sizes == [BATCH_SIZE] * 3 + [7]
