"""Basic tokenization in the graph says what the one in Python says."""

import itertools
import random

import pytest
import tensorflow as tf

from bert_tf.tokenization.graph_normalization import (
    GraphNormalizer,
    drop_invalid_utf8,
)
from bert_tf.tokenization.normalization import Normalizer
from tests.tokenization import tokenization_oracle as oracle

VARIANTS = pytest.mark.parametrize(
    ("do_lower_case", "strip_accents"), oracle.VARIANTS
)
# Lead and continuation bytes, overlong forms, surrogates, beyond U+10FFFF.
HALVES = b"a \x80\x9f\xa0\xbf\xc0\xc3\xe0\xe4\xed\xef\xf0\xf4\xf5\xff\xcc\x81"


def visible(normalizer, texts):
    """The starts and ends of what is no space, of all texts."""
    for text in texts:
        for character, *span in zip(*normalizer.align(text), strict=True):
            if character != " ":
                yield tuple(span)


@VARIANTS
def test_words_and_where_they_came_from(do_lower_case, strip_accents):
    normalizer = Normalizer(do_lower_case, strip_accents)
    in_graph = GraphNormalizer(do_lower_case, strip_accents)
    texts = list(oracle.hostile_texts(random.Random(41), 5_003))
    texts += ["", "\u0301", "a", "\u0301a\u0301", "\0", ""]
    aligned = tf.function(in_graph.align)(tf.constant(texts))
    for made in (aligned.text, in_graph(tf.constant(texts))):
        words = tf.strings.split(made).to_list()
        for text, got in zip(texts, words, strict=True):
            expected = normalizer(text).encode().split(b" ")
            assert got == list(filter(None, expected)), ascii(text)
    assert aligned.starts.dtype == aligned.ends.dtype == tf.int32
    spans = zip(aligned.starts.numpy(), aligned.ends.numpy(), strict=True)
    assert list(spans) == list(visible(normalizer, texts))


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("e\u0301\u0327a", [(0, 3), (3, 4)]),
        ("e\0\u0301", [(0, 1)]),  # what is deleted parts them
        ("e\u0301\0\u0301a", [(0, 2), (4, 5)]),
        ("한\u0301", [(0, 1), (0, 1), (0, 2)]),
        (".\u0301 \u0301a", [(0, 2), (4, 5)]),
        ("İ\u0301", [(0, 2)]),
        ("a\u302e\U0001d165", [(0, 1), (2, 3), (1, 2)]),  # sorted
    ],
)
def test_accents_and_what_they_belong_to(text, spans):
    for texts in ([text], ["\u0301a", text]):
        _, starts, ends = GraphNormalizer(True, None).align(tf.constant(texts))
        got = zip(starts.numpy(), ends.numpy(), strict=True)
        assert list(got)[-len(spans) :] == spans
        assert list(visible(Normalizer(), [text])) == spans


@pytest.mark.parametrize("texts", [[], [""], ["", " ", "\0"]])
def test_nothing_at_all(texts):
    normalizer = GraphNormalizer(True, None)
    texts = tf.constant(texts, tf.string)
    aligned = normalizer.align(texts)
    assert aligned.text.shape == normalizer(texts).shape == texts.shape
    assert aligned.starts.shape == aligned.ends.shape == (0,)


def test_drops_bytes_that_are_not_utf8():
    halves = [bytes([half]) for half in HALVES]
    texts = list(map(b"".join, itertools.product(halves, repeat=3)))
    rng = random.Random(43)
    texts += [b"".join(rng.choices(halves, k=9)) for _ in range(3_001)]
    texts += [rng.randbytes(13) for _ in range(1_009)]
    texts += ["\ufeffa\ufeff\0\ufffe\uffff\ufffd\r\n\U0010ffff中".encode()]
    expected = [text.decode(errors="ignore") for text in texts]
    got = drop_invalid_utf8(tf.constant(texts)).numpy()
    assert [text.decode() for text in got] == expected
    # The offsets count these characters.
    decoded = tf.strings.unicode_decode(texts, "UTF-8", errors="ignore")
    assert decoded.to_list() == [list(map(ord, text)) for text in expected]
    assert drop_invalid_utf8(tf.constant([[b"a\xff"]])).numpy() == [[b"a"]]
