"""Spans chosen in a graph are those of `tasks.span_answers`."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.serving.spans import (
    Contexts,
    NBest,
    Spans,
    allowed_spans,
    best_distinct,
    in_rows,
    lay_windows,
    null_scores,
    with_null,
)
from bert_tf.tasks.answers import Scores, find_answer
from bert_tf.tasks.questions import Question, Window

S, DOC_STRIDE, MAX_ANSWER_LENGTH = 17, 4, 5
# Pieces of the contexts: none, in one window, in several.
NUM_PIECES = np.array([7, 0, 1, 41, 12, 0, 29, 3, 13])
B = len(NUM_PIECES)
QUERY_LENGTHS = np.arange(B) % 4
NEVER = -np.inf


def contexts_of(random, letters):
    """Texts of some letters, in pieces of 0 to 2, some of them misplaced."""
    texts, starts, ends = [], [], []
    for count in NUM_PIECES:
        begin = np.arange(count)
        texts.append("".join(random.choice([*letters], count + 1)))
        starts.append(begin + (random.random(count) < 0.1))
        ends.append(begin + random.integers(1, 3, count))
    return texts, starts, ends


def in_tensors(texts, starts, ends):
    rows = [
        tf.ragged.constant([[*row] for row in column], tf.int32, ragged_rank=1)
        for column in ([map(ord, text) for text in texts], starts, ends)
    ]
    return Contexts(*rows)


def in_arrays(windows, starts, ends):
    """The windows as `data.windows` has them."""
    origins = np.cumsum(NUM_PIECES) - NUM_PIECES
    return [
        Window(
            question,
            first,
            starts[question][np.array(pieces) - origins[question]],
            ends[question][np.array(pieces) - origins[question]],
            np.array(is_max_context),
        )
        for question, first, pieces, is_max_context in zip(
            windows.question.numpy(),
            windows.first.numpy(),
            windows.pieces.to_list(),
            windows.is_max_context.to_list(),
            strict=True,
        )
    ]


def ranked(logits, n_best_size):
    """Places and logits, the best first, of equal ones the first."""
    order = np.argsort(-logits, kind="stable")[:n_best_size]
    return order, logits[order]


def found_in_arrays(texts, windows, start_logits, end_logits, n_best_size):
    """`find_answer` for every question, SQuAD 2.0."""
    scores = [
        Scores(
            *ranked(start[: w.first + len(w.starts) + 1], n_best_size),
            *ranked(end[: w.first + len(w.starts) + 1], n_best_size),
            start[0],
            end[0],
        )
        for start, end, w in zip(start_logits, end_logits, windows, strict=True)
    ]
    return [
        find_answer(
            Question("q", "", text),
            [w for w in windows if w.question == number],
            [
                score
                for w, score in zip(windows, scores, strict=True)
                if w.question == number
            ],
            n_best_size=n_best_size,
            max_answer_length=MAX_ANSWER_LENGTH,
            with_negative=True,
        )
        for number, text in enumerate(texts)
    ]


@pytest.mark.parametrize("n_best_size", [2, 5, 23])
@pytest.mark.parametrize("num_values", [4, 1000])
@pytest.mark.parametrize("letters", ["a", "ab", "aé中🤗"])
def test_answers_and_their_order(letters, num_values, n_best_size):
    random = np.random.default_rng([len(letters), num_values, n_best_size])
    texts, starts, ends = contexts_of(random, letters)
    windows = lay_windows(
        tf.constant(NUM_PIECES, tf.int64),
        tf.constant(QUERY_LENGTHS, tf.int64),
        S,
        DOC_STRIDE,
    )
    shape = len(windows.question), S
    arrays = in_arrays(windows, starts, ends)
    is_there = np.arange(S) < [[w.first + len(w.starts) + 1] for w in arrays]
    logits = [
        np.where(is_there, values, NEVER).astype("float32")
        for values in random.integers(0, num_values, (2, *shape))
    ]
    contexts = in_tensors(texts, starts, ends)
    spans = allowed_spans(
        contexts, windows, *logits, n_best_size, MAX_ANSWER_LENGTH
    )
    best = best_distinct(spans, contexts, n_best_size)
    listed = with_null(
        in_rows(best, B, n_best_size), null_scores(windows, *logits, B)
    )
    slices = contexts.slices(
        tf.range(B)[:, tf.newaxis], listed.begins, listed.ends
    ).numpy()
    expected = found_in_arrays(texts, arrays, *logits, n_best_size)
    if n_best_size == 23:
        assert max(len(found.nbest) for found in expected) > 3
    for row, scores, found in zip(slices, listed.scores, expected, strict=True):
        count = len(found.nbest)
        assert [text.decode() for text in row[:count]] == [
            entry["text"] for entry in found.nbest
        ]
        assert scores.numpy().tolist()[:count] == [
            entry["start_logit"] + entry["end_logit"] for entry in found.nbest
        ]
        assert np.isneginf(scores[count:]).all()


def spans_of(question, begins, ends, scores):
    return Spans(
        tf.constant(question, tf.int64),
        tf.constant(begins),
        tf.constant(ends),
        tf.constant(scores, tf.float64),
    )


def test_texts_are_told_apart_in_each_question():
    contexts = in_tensors(["abab", "ab"], [[], []], [[], []])
    spans = spans_of(
        [0, 0, 0, 1, 1], [0, 2, 1, 0, 1], [2, 4, 2, 2, 2], [1, 2, 0, 3, 4]
    )
    best = best_distinct(spans, contexts, 5)
    assert best.question.numpy().tolist() == [0, 0, 1, 1]
    assert best.begins.numpy().tolist() == [2, 1, 1, 0]
    assert best.ends.numpy().tolist() == [4, 2, 2, 2]


def test_texts_are_made_of_the_best_ranks_alone(monkeypatch):
    """Of all only where the best are the same."""
    sizes = []
    slices = Contexts.slices

    def counting(self, context, begins, ends):
        sizes.append(len(begins))
        return slices(self, context, begins, ends)

    monkeypatch.setattr(Contexts, "slices", counting)
    many = np.arange(307, dtype="int32")
    spans = spans_of(many * 0, many, many + 1, -1.0 * many)
    different = in_tensors(["".join(map(chr, range(307)))], [[]], [[]])
    best = best_distinct(spans, different, 3)
    assert best.begins.numpy().tolist() == [0, 1, 2]
    assert sizes == [12]
    sizes.clear()
    same = in_tensors(["a" * 100 + "b" + "c" * 206], [[]], [[]])
    best = best_distinct(spans, same, 2)
    assert best.begins.numpy().tolist() == [0, 100]
    assert sizes == [8, 16, 32, 64, 128]
    assert len(best_distinct(spans, same, 4).begins) == 3


def test_only_no_answer_may_be_one_more():
    answers = NBest(
        tf.constant([[5.0, 3], [5, 3], [5, 3], [NEVER, NEVER]], tf.float64),
        tf.constant([[1, 2], [1, 2], [1, 2], [-1, -1]]),
        tf.constant([[3, 4], [3, 4], [3, 4], [-1, -1]]),
    )
    null = tf.constant([3.0, 4, 9, 0], tf.float64)
    scores, begins, ends = with_null(answers, null)
    assert scores.numpy().tolist() == [
        [5, 3, 3],
        [5, 4, NEVER],
        [9, 5, NEVER],
        [0, NEVER, NEVER],
    ]
    assert begins[:, :2].numpy().tolist() == [
        [1, 2],
        [1, -1],
        [-1, 1],
        [-1] * 2,
    ]
    assert ends[0].numpy().tolist() == [3, 4, -1]
