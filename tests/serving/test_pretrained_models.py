"""Served vectors and words are those of extract_features.py, fill_mask.py."""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.heads import BertPretrainer
from bert_tf.modeling import BertModel
from bert_tf.serving.served import FEATURES, ServedEncoder, ServedMaskedLM
from bert_tf.tasks.encoding import Encoding, TextEncoding, make_features
from bert_tf.tasks.examples import Example
from bert_tf.tasks.features import choose_layers, vectors
from bert_tf.tasks.fill_mask import fill_mask
from tests.serving.small_served import (
    CONFIG,
    ENCODING,
    LENGTH,
    NASTY,
    VOCAB,
    answer,
    answer_tokens,
    random_weights,
    text_of,
    tokenize,
)

TOP_K = 3


@pytest.fixture(scope="module")
def encoder():
    model = random_weights(BertModel(CONFIG, output_hidden_states=True))
    return ServedEncoder(model, ENCODING)


@pytest.fixture(scope="module")
def filling():
    return ServedMaskedLM(
        random_weights(BertPretrainer(CONFIG)), ENCODING, TOP_K
    )


def features_of(texts):
    """As extract_features.py makes them."""
    encoding = Encoding(**vars(ENCODING), problem="regression", labels=())
    examples = [Example(str(n), text_of(text)) for n, text in enumerate(texts)]
    batch = make_features(examples, encoding).batch
    return {name: batch[name] for name in FEATURES}


def test_embeddings_are_those_of_the_script(encoder):
    features = features_of(NASTY)
    outputs = encoder.model(features)
    last = choose_layers("-1", CONFIG)
    mask = features["input_mask"]
    expected = {
        "pooled_output": outputs["pooled_output"],
        "mean": vectors(outputs, mask, last, "mean")["-1"],
    }
    assert np.std(expected["mean"], axis=0).mean() > 0.1
    for got in (
        answer(encoder, {"text": NASTY}),
        answer_tokens(encoder, features),
    ):
        assert set(got) == set(expected)
        for name, values in expected.items():
            assert got[name].dtype == np.float32
            np.testing.assert_allclose(got[name], values, atol=1e-4)


def test_padding_changes_no_embedding(encoder):
    texts = [b"the cat", NASTY[-3], b""]
    assert tokenize(encoder, {"text": texts[:1]})["input_ids"].shape == (1, 4)
    together = answer(encoder, {"text": texts})
    for row, text in enumerate(texts):
        alone = answer(encoder, {"text": [text]})
        for name, values in alone.items():
            np.testing.assert_allclose(
                values[0], together[name][row], atol=1e-4
            )


def test_no_texts_give_no_embeddings(encoder):
    width = CONFIG.hidden_size
    assert answer(encoder, encoder.example)["mean"].shape == (2, width)
    none = answer(encoder, {"text": []})
    assert none["mean"].shape == none["pooled_output"].shape == (0, width)


def test_embeddings_are_float32_under_any_policy():
    served = ServedEncoder(BertModel(CONFIG, dtype="bfloat16"), ENCODING)
    features = {name: tf.ones([2, 3], tf.int32) for name in FEATURES}
    for values in served.answer_tokens(features).values():
        assert values.dtype == tf.float32
        assert values.shape == (2, CONFIG.hidden_size)


@pytest.mark.parametrize(
    ("layers", "pooling"),
    [
        ("sum_all,0", "none"),
        pytest.param("all,-1", "max", marks=pytest.mark.slow),
    ],
)
def test_chosen_layers_and_pooling(encoder, layers, pooling):
    """Those of each token with its name; behind the last there is nothing."""
    asked = {"choices": choose_layers(layers, CONFIG), "pooling": pooling}
    served = ServedEncoder(
        encoder.model, ENCODING, functools.partial(vectors, **asked)
    )
    got = answer(served, {"text": NASTY})
    features = features_of(NASTY)
    mask = features["input_mask"]
    expected = vectors(encoder.model(features), mask, **asked)
    if pooling == "none":
        lengths = mask.sum(axis=1)
        assert got.pop("num_tokens").tolist() == lengths.tolist()
        tokens = np.array(VOCAB)[features["input_ids"]]
        tokens = np.where(mask > 0, np.char.encode(tokens, "utf-8"), b"")
        assert got.pop("tokens").tolist() == tokens.tolist()
    assert set(got) == set(asked["choices"])
    for name, values in got.items():
        kept = np.array(expected[name])
        if pooling == "none":
            kept[mask == 0] = 0
        np.testing.assert_allclose(values, kept, atol=1e-4)
    none = answer(served, {"text": []})
    assert {len(values) for values in none.values()} == {0}


# ---------------------------------------------------------------------- blanks


def short_texts_with_blanks():
    """Nasty texts between blanks, as many as the model has places for."""
    short = [x for x in NASTY if len(ENCODING.tokenizer.encode(text_of(x))) < 9]
    assert len(short) > 12
    for number, (a, b) in enumerate(itertools.pairwise(short)):
        yield (
            a + b"[MASK]" + b,
            b"[MASK] " + a + b"[MASK][MASK]",
            a + b"[mask[MASK]!",
            b"[ MASK]" + a + b"[[MASK]]",
            b"[MA\xffSK]" + a,
        )[number % 5]


def all_candidates(filling, text):
    """The probabilities of all words for each blank, the best first."""
    return fill_mask(filling.model, ENCODING.tokenizer, text, len(VOCAB))


def assert_blanks(got, row, expected):
    """Compares with `all_candidates`; behind the last is padding.

    Words that are almost equally likely may change places.
    """
    count = len(expected)
    assert got["num_blanks"][row] == count
    for words, chances, candidates in zip(
        got["words"][row, :count],
        got["probabilities"][row, :count],
        expected,
        strict=True,
    ):
        of_words = [dict(candidates)[word.decode()] for word in words]
        best = [chance for _, chance in candidates[:TOP_K]]
        assert len(set(words)) == TOP_K
        np.testing.assert_allclose(chances, best, atol=1e-4)
        np.testing.assert_allclose(chances, of_words, atol=1e-4)
    assert (got["words"][row, count:] == b"").all()
    assert (got["probabilities"][row, count:] == 0).all()


def test_words_are_those_of_the_script(filling):
    texts = list(short_texts_with_blanks())
    got = answer(filling, {"text": texts})
    assert got["num_blanks"].dtype == np.int32
    assert got["words"].shape == (len(texts), 3, TOP_K)
    for row, text in enumerate(texts):
        assert_blanks(got, row, all_candidates(filling, text_of(text)))
    seen = tokenize(filling, {"text": texts})
    features = {name: seen[name] for name in FEATURES}
    for name, values in answer_tokens(filling, features).items():
        if values.dtype == np.float32:
            np.testing.assert_allclose(values, got[name], atol=1e-4)
        else:
            assert values.shape == got[name].shape


def test_texts_without_masks(filling):
    none = answer(filling, {"text": NASTY})
    assert not none["num_blanks"].any()
    assert none["words"].shape == (len(NASTY), 0, TOP_K)
    some = answer(filling, {"text": [b"", b"the [MASK]", b"the"]})
    assert some["num_blanks"].tolist() == [0, 1, 0]
    expected = all_candidates(filling, "the [MASK]")
    for row, blanks in enumerate([[], expected, []]):
        assert_blanks(some, row, blanks)


def test_ignores_masks_that_are_truncated(filling):
    sentence = b"the cat sat on "
    long = b"[MASK] " + sentence * 307 + b"[MASK]"
    # As much of it as there are places for.
    fits = "[MASK] " + sentence.decode() * ((LENGTH - 3) // 4)
    got = answer(filling, {"text": [long, b"[MASK] " * 99]})
    assert got["num_blanks"].tolist() == [1, LENGTH - 2]
    assert_blanks(got, 0, all_candidates(filling, fits))


def test_no_texts_give_no_words(filling):
    none = answer(filling, {"text": []})
    assert none["num_blanks"].shape == (0,)
    assert none["words"].shape == none["probabilities"].shape == (0, 0, TOP_K)
    counts = answer(filling, filling.example)["num_blanks"]
    assert counts.tolist() == [1, 2]


def test_top_k_is_at_most_the_vocabulary(filling):
    served = ServedMaskedLM(filling.model, ENCODING, 10_007)
    got = answer(served, {"text": [b"the [MASK]"]})
    words = got["words"][0, 0].tolist()
    assert sorted(words) == sorted(token.encode() for token in VOCAB)
    assert got["probabilities"][0, 0].sum() == pytest.approx(1, abs=1e-5)


def test_refuses_top_k_0_and_vocabularies_without_mask(filling):
    with pytest.raises(InputError, match="top_k must be at least 1; got 0"):
        ServedMaskedLM(filling.model, ENCODING, top_k=0)
    vocab = tuple(token for token in VOCAB if token != "[MASK]")
    encoding = TextEncoding(vocab, True, None, LENGTH)
    with pytest.raises(InputError, match=r"but not \[MASK\]"):
        ServedMaskedLM(filling.model, encoding)
