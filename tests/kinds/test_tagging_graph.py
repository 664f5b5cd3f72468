"""Tags of words in a graph are those that run_ner.py predicts."""

import functools
import itertools
import random

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.kinds.tags.conll_files import Sentence, TaggingEncoding
from bert_tf.kinds.tags.graph import WHITE_SPACE, ServedTagger, split_words
from bert_tf.kinds.tags.task import TaggingTask
from bert_tf.modeling.heads import BertTokenClassifier
from tests.serving.small_served import (
    CONFIG,
    LENGTH,
    LETTERS,
    NASTY,
    VOCAB,
    answer,
    answer_tokens,
    assert_likeliest,
    random_weights,
    text_of,
    tokenize,
)

pytestmark = pytest.mark.usefixtures("eagerly")

LABELS = ("O", "B-CAT", "B-MAT", "I-CAT", "I-MAT")


def random_texts(count, seed=2):
    generator = random.Random(seed)
    spaces = [*map(chr, WHITE_SPACE), " ", "  ", "\r\n"]
    letters = f"{LETTERS}\0\ufffd\u0301\u200b\ufeffZÀ\U00010400"

    def word():
        length = generator.choice((1, 2, 3, 5, 8, 31))
        return "".join(generator.choices(letters, k=length))

    return [
        "".join(
            generator.choice(spaces) * generator.randrange(3) + word()
            for _ in range(generator.randrange(29))
        ).encode()
        for _ in range(count)
    ]


TEXTS = [*NASTY, *random_texts(23)]


@functools.cache
def tagger(length=LENGTH):
    encoding = TaggingEncoding(VOCAB, True, None, length, LABELS)
    model = random_weights(BertTokenClassifier(CONFIG, len(LABELS)))
    batch = encoding.encode(sentences_of(TEXTS)).batch
    logits = model(batch)["logits"].numpy()[batch["label_mask"] > 0]
    # Otherwise one or two labels would be the most likely everywhere.
    model.output_bias.assign_sub(logits.mean(axis=0))
    return ServedTagger(model, encoding)


def sentences_of(contents):
    texts = [tuple(text_of(content).split()) for content in contents]
    return [
        Sentence(words, None, (1,) * len(words), "x.txt")
        for words in texts
        if words
    ]


def assert_as_in_script(served, contents, tags, probabilities):
    """Checks that tags are as likely as those that run_ner.py predicts."""
    sentences = sentences_of(contents)
    batch = served.encoding.encode(sentences).batch
    task = TaggingTask(CONFIG, served.encoding)
    outputs = served.model(batch)
    predictions = {
        name: np.array(value)
        for name, value in task.predictions(batch, outputs).items()
    }
    expected = flat(task.tags(predictions, sentences))
    is_first = batch["label_mask"] > 0
    chances = tf.nn.softmax(outputs["logits"]).numpy()[is_first]
    for answered in (expected, tags):
        numbers = np.array([LABELS.index(tag) for tag in answered])
        assert_likeliest(numbers, chances)
    np.testing.assert_allclose(probabilities, chances.max(axis=1), atol=1e-4)


def rows_of(answers, name):
    """Returns the values of each text without padding."""
    return [
        row[:count].tolist()
        for row, count in zip(answers[name], answers["num_words"], strict=True)
    ]


def decoded(rows):
    return [[item.decode() for item in row] for row in rows]


def flat(rows):
    return [*itertools.chain(*rows)]


def test_words_are_those_of_python():
    texts = [f"{chr(code)}a{chr(code)}b" for code in range(0x3101)]
    words = split_words(tf.constant(texts)).strings
    assert decoded(words.to_list()) == [text.split() for text in texts]
    words = tf.function(split_words)(tf.constant(TEXTS))
    columns = zip(TEXTS, *(rows.to_list() for rows in words), strict=True)
    for content, strings, starts, ends in columns:
        text = text_of(content)
        slices = [text[a:b] for a, b in zip(starts, ends, strict=True)]
        assert slices == text.split()
        assert [word.encode() for word in slices] == strings


@pytest.mark.parametrize(
    "length",
    # Rows do not depend on the model.
    [7, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, LENGTH))],
)
def test_rows_and_tags_are_those_of_the_script(length):
    served = tagger(length)
    answers = answer(served, {"text": TEXTS})
    words = decoded(rows_of(answers, "words"))
    assert words == [text_of(content).split() for content in TEXTS]
    tags = flat(decoded(rows_of(answers, "tags")))
    probabilities = flat(rows_of(answers, "probabilities"))
    assert_as_in_script(served, TEXTS, tags, probabilities)
    assert len(set(tags)) >= len(LABELS) - 1
    seen = tokenize(served, {"text": TEXTS})
    made = served.encoding.encode(sentences_of(TEXTS)).batch
    longest = made["input_mask"].sum(axis=1).max()
    is_row = np.arange(seen["tokens"].shape[1]) < seen["num_rows"][:, None]
    for key in served.token_inputs:
        assert (seen[key][is_row] == made[key][:, :longest]).all()
        assert not seen[key][~is_row].any()
    names = np.array([token.encode() for token in VOCAB], object)
    assert (seen["tokens"] == names[seen["input_ids"]]).all()
    has_word = [bool(text_of(content).split()) for content in TEXTS]
    assert (seen["num_rows"] > 0).tolist() == has_word


@pytest.mark.parametrize("texts", [[], [""], [" \n", b"\xff"]])
def test_texts_without_words(texts):
    served = tagger()
    answers = answer(served, {"text": texts})
    assert answers.pop("num_words").tolist() == [0] * len(texts)
    shapes = {values.shape for values in answers.values()}
    assert shapes == {(len(texts), 0)}
    seen = tokenize(served, {"text": texts})
    assert seen["num_rows"].tolist() == [0] * len(texts)


def test_types_and_padding():
    answers = answer(tagger(), {"text": ["the\tcat sat", "", "mat"]})
    assert answers["num_words"].tolist() == [3, 0, 1]
    assert answers["words"].tolist() == [
        [b"the", b"cat", b"sat"],
        [b"", b"", b""],
        [b"mat", b"", b""],
    ]
    assert answers["starts"].tolist() == [[0, 4, 8], [-1] * 3, [0, -1, -1]]
    assert answers["ends"].tolist() == [[3, 7, 11], [-1] * 3, [3, -1, -1]]
    for name in ("num_words", "starts", "ends"):
        assert answers[name].dtype == np.int32
    is_word = answers["starts"] >= 0
    assert ((answers["tags"] == b"") == ~is_word).all()
    assert ((answers["probabilities"] == 0) == ~is_word).all()


def test_tags_of_tokens():
    served = tagger()
    made = served.encoding.encode(sentences_of(TEXTS)).batch
    answers = answer_tokens(served, made)
    is_first = made["label_mask"] > 0
    tags = [tag.decode() for tag in answers["tags"][is_first]]
    probabilities = answers["probabilities"][is_first]
    assert_as_in_script(served, TEXTS, tags, probabilities)
    is_token = made["input_mask"] > 0
    for name, empty in (("tags", b""), ("probabilities", 0), ("tag_ids", -1)):
        assert (answers[name][~is_token] == empty).all()
    assert answers["tag_ids"].dtype == np.int32
    names = np.array([label.encode() for label in LABELS], object)
    expected = names[answers["tag_ids"][is_token]]
    np.testing.assert_array_equal(expected, answers["tags"][is_token])
