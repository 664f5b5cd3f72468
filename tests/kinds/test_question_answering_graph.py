"""Windows and answers in a graph equal run_squad.py's."""

import dataclasses
import functools
import random

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.kinds.spans import task as answers
from bert_tf.kinds.spans.graph import ServedSpanLabeler
from bert_tf.kinds.spans.squad_files import (
    PLACES,
    Question,
    SpanEncoding,
    make_windows,
)
from bert_tf.kinds.spans.task import AnswerRules, SpanTask
from bert_tf.tokenization.normalization import Normalizer
from tests.serving.small_served import (
    CONFIG,
    LENGTH,
    NASTY,
    VOCAB,
    answer,
    answer_tokens,
    text_of,
    tokenize,
)

pytestmark = pytest.mark.usefixtures("eagerly")

# Scripts without spaces, from right to left, with combining marks; deleted
# characters, noncharacters, and emoji of several code points.
SCRIPTS = (
    "The café (Café) re-opened: naïve, jalapeño\u0301s",
    "cafe\u0301 Cafe\u0301s n\u0303 \u0301x",
    "北京是中华人民共和国的首都，位于华北平原。Abc北京",
    "กรุงเทพมหานคร เป็นเมืองหลวง น้ำท่วม",
    "القاهرةُ عاصمةُ مصر، وأكبر مدنها.",
    "יְרוּשָׁלַיִם היא בירת ישראל־הגדולה",
    "서울특별시는 대한민국의 수도이다",
    "नई दिल्ली भारत की राजधानी है।",
    "ok 👩‍👩‍👧 👍🏽! 🇰🇷x ☂️",
    "\ufeffa\u200bb\u00adc \u200b \ufeffd\x00e \x0bf \ufffd\uffff g",
    "ΟΔΟΣ ΟΔΟΣ. ΣΑΣ İstanbul ǅ ß",
    "the " + "x" * 307 + " cat sat " + "中" * 41,
    "a\u0323\u0301\u0323 c\u0327\u0301 \u0f73\u0f72 e\u0301\u0323",
)


# Every character of these texts that the small vocabulary lacks.
JOINED = " ".join(SCRIPTS)
CHARACTERS = {*Normalizer(False)(JOINED), *Normalizer(True)(JOINED)}
MORE = sorted(CHARACTERS - {" ", *VOCAB})
ALL_VOCAB = (*VOCAB, *MORE, *(f"##{character}" for character in MORE))
ALL_CONFIG = dataclasses.replace(CONFIG, vocab_size=len(ALL_VOCAB))


def random_texts(count, letters, seed=3):
    draw = random.Random(seed)
    return [
        " ".join(
            "".join(draw.choices(letters, k=draw.choice((1, 1, 2, 5))))
            for _ in range(draw.choice((1, 3, 7, 29, 71)))
        ).encode()
        for _ in range(count)
    ]


CONTEXTS = (
    *NASTY,
    *(text.encode() for text in SCRIPTS),
    *random_texts(29, "".join(SCRIPTS)),
)
QUESTIONS = (*CONTEXTS[7:], *CONTEXTS[:7])


def encoding_of(vocab=ALL_VOCAB, lower=True, **options):
    numbers = {"doc_stride": 5, "max_query_length": 6, **options}
    return SpanEncoding(vocab, lower, None, LENGTH, **numbers)


TABLES = np.random.default_rng(1).normal(0, 5, (2, 9973)).astype("float32")


def drawn(features):
    """Random logits from a table: equal on any processor and in any batch."""
    ids = tf.cast(features["input_ids"], tf.int32)
    row = tf.reduce_sum(ids, axis=1, keepdims=True)  # [PAD] is 0.
    positions = tf.range(tf.shape(ids)[1])
    number = (31 * ids + 17 * positions + 7 * row) % TABLES.shape[1]
    start, end = (tf.gather(table, number) for table in TABLES)
    return {"start_logits": start, "end_logits": end}


def with_values(num_values):
    """Returns a model whose logits have few values: many are equal."""

    def model(features):
        ids = tf.cast(features["input_ids"], tf.int32)
        positions = tf.range(tf.shape(ids)[1])
        start, end = (
            tf.cast((ids * ids + positions // step) % num_values, tf.float32)
            for step in (5, 3)
        )
        return {"start_logits": start, "end_logits": end}

    return model


@functools.cache
def labeler(model=drawn, encoding=None, num_answers=5, **rules):
    encoding = encoding or encoding_of()
    return ServedSpanLabeler(model, encoding, AnswerRules(**rules), num_answers)


def asked(questions, contexts):
    return {"question": list(questions), "context": list(contexts)}


def questions_of(questions, contexts):
    pairs = zip(map(text_of, questions), map(text_of, contexts), strict=True)
    return [Question("q", *pair) for pair in pairs]


def found_by_script(served, questions, contexts):
    task = SpanTask(ALL_CONFIG, served.encoding)

    def predict(windows):
        outputs = served.model(windows.arrays)
        kept = task.predictions(windows.arrays, outputs)
        return {name: np.array(values) for name, values in kept.items()}

    made = questions_of(questions, contexts)
    arguments = made, served.encoding, predict, served.rules
    return [found for _, found in answers.answer_questions(*arguments)]


def assert_same(row, found, context, has_few_texts=False):
    """Compares the answers to a question with the script's.

    If the best spans have few different texts, the last answers may be missing,
    and the probabilities of the others are larger.
    """
    nbest = found.nbest[: len(row["nbest_answers"])]
    count = row["num_nbest"]
    assert 1 <= count <= len(nbest) if has_few_texts else count == len(nbest)
    nbest = nbest[:count]
    chances = [entry["probability"] for entry in nbest]
    texts = [entry["text"] for entry in nbest]
    scale = 1.0
    if has_few_texts and chances[0]:
        scale = row["nbest_probabilities"][0] / chances[0]
    assert scale > 1 - 1e-5
    assert [t.decode() for t in row["nbest_answers"][:count]] == texts
    np.testing.assert_allclose(
        row["nbest_probabilities"][:count],
        np.multiply(chances, scale),
        atol=1e-5,
    )
    assert row["answer"].decode() == found.text
    chance_of = {e["text"]: e["probability"] for e in reversed(found.nbest)}
    if found.text in chance_of:
        expected = chance_of[found.text] * scale
        assert row["score"] == pytest.approx(expected, abs=1e-5)
    if found.null_odds is not None:
        assert row["null_odds"] == pytest.approx(found.null_odds, rel=1e-6)
    starts = [row["start"], *row["nbest_starts"][:count]]
    ends = [row["end"], *row["nbest_ends"][:count]]
    for text, start, end in zip(
        [found.text, *texts], starts, ends, strict=True
    ):
        assert (start, end) == (-1, -1) if not text else start >= 0
        assert context[max(start, 0) : max(end, 0)] == text
    assert (row["nbest_answers"][count:] == b"").all()
    assert (row["nbest_probabilities"][count:] == 0).all()
    assert (row["nbest_starts"][count:] == -1).all()


# Words or letters that are repeated until the text is longer than a window.
REPEATED = (b"the cat sat on " * 307, b"xyz" * 61)


def assert_all_same(served, questions=QUESTIONS, contexts=CONTEXTS):
    answers = answer(served, asked(questions, contexts))
    expected = found_by_script(served, questions, contexts)
    for number, (found, context) in enumerate(
        zip(expected, contexts, strict=True)
    ):
        row = {name: values[number] for name, values in answers.items()}
        has_few_texts = context in REPEATED or {*context} <= {*b"ab "}
        assert_same(row, found, text_of(context), has_few_texts)
    return answers


# As for SQuAD 2.0.
SOME_ARE_IMPOSSIBLE = {"with_negative": True, "null_score_diff_threshold": -4.5}


@pytest.mark.parametrize(
    "options",
    [
        SOME_ARE_IMPOSSIBLE,
        {"n_best_size": 3, "max_answer_length": 2},
        *(
            pytest.param(options, marks=pytest.mark.slow)
            for options in (
                {"encoding": encoding_of(lower=False)},
                {"n_best_size": 61, "num_answers": 61},
            )
        ),
    ],
)
def test_answers_are_those_of_the_script(options):
    answers = assert_all_same(labeler(**options))
    assert len({*answers["answer"]}) > 10


def test_logits_of_tokens():
    served = labeler()
    windows = tokenize(served, asked([b"Cat?"], [NASTY[4]]))
    features = {name: windows[name][0] for name in served.token_inputs}
    logits = answer_tokens(served, features)
    expected = served.model(features)
    assert logits.keys() == {"start_logits", "end_logits"}
    for name, values in logits.items():
        np.testing.assert_array_equal(values, expected[name])


@pytest.mark.parametrize(
    ("num_values", "with_negative"),
    [
        (2, True),
        pytest.param(1, False, marks=pytest.mark.slow),
        pytest.param(5, True, marks=pytest.mark.slow),
    ],
)
def test_equal_scores_have_the_order_of_the_script(num_values, with_negative):
    contexts = [*CONTEXTS, *random_texts(41, "aab", seed=4)]
    served = labeler(with_values(num_values), with_negative=with_negative)
    assert_all_same(served, [b"a"] * len(contexts), contexts)


@pytest.mark.parametrize(
    ("max_seq_length", "doc_stride"),
    [(11, 1), (13, 128), (LENGTH, 5)],
)
def test_windows_are_those_of_the_script(max_seq_length, doc_stride):
    """Scores of two windows may be equal: they are rounded as in NumPy."""
    encoding = dataclasses.replace(
        encoding_of(), max_seq_length=max_seq_length, doc_stride=doc_stride
    )
    served = labeler(encoding=encoding)
    long = [b"a " * count for count in range(217, 240, 3)]
    contexts = [*CONTEXTS, *long]
    questions = [*QUESTIONS, *(b"" for _ in long)]
    seen = tokenize(served, asked(questions, contexts))
    made = make_windows(questions_of(questions, contexts), encoding, False)
    counts = made.counts
    assert seen["num_windows"].tolist() == counts.tolist()
    is_window = np.arange(counts.max()) < counts[:, np.newaxis]
    length = seen["input_ids"].shape[2]
    for name in served.token_inputs:
        expected = made.batch[name]
        values = seen[name]
        np.testing.assert_array_equal(values[is_window], expected[:, :length])
        assert not values[~is_window].any()
        assert not expected[:, length:].any()
    names = [ALL_VOCAB[number].encode() for number in seen["input_ids"].flat]
    assert seen["tokens"].ravel().tolist() == names
    texts = asked(questions, contexts).items()
    windows = served._windows({name: tf.constant(x) for name, x in texts})
    for name in PLACES:
        np.testing.assert_array_equal(
            windows.features[name], made.batch[name][:, :length]
        )


def test_no_questions():
    served = labeler(**SOME_ARE_IMPOSSIBLE)
    answers = answer(served, asked([], []))
    assert {len(values) for values in answers.values()} == {0}
    assert answers["nbest_answers"].shape == (0, 5)
    assert {len(v) for v in tokenize(served, asked([], [])).values()} == {0}
    answers = answer(served, served.example)
    assert {len(values) for values in answers.values()} == {2}


@pytest.mark.slow
def test_refuses_nan():
    def broken(features):
        outputs = drawn(features)
        return {**outputs, "start_logits": outputs["start_logits"] * np.nan}

    with pytest.raises(tf.errors.InvalidArgumentError, match="logits"):
        answer(labeler(broken), asked([b"0"], [b"a"]))
