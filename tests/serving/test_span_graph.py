"""Windows and spans in a graph equal those of `tasks` in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.serving import spans
from bert_tf.serving.spans import Contexts
from bert_tf.tasks.answers import AnswerRules, Scores, find_answer
from bert_tf.tasks.questions import (
    Question,
    SpanEncoding,
    Window,
    make_windows,
)

VOCAB = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a")
MAX_QUERY_LENGTH = 7
NEVER = -np.inf


# --------------------------------------------------------------------- windows


def in_graph(num_tokens, query_lengths, max_seq_length, doc_stride):
    """Returns the windows of a graph with unknown shapes."""
    lengths = tf.TensorSpec([None], tf.int64)
    function = tf.function(
        lambda tokens, query: spans.make_windows(
            tokens, query, max_seq_length, doc_stride
        ),
        input_signature=[lengths, lengths],
    )
    return function(
        tf.constant(num_tokens, tf.int64), tf.constant(query_lengths, tf.int64)
    )


def in_numpy(num_tokens, query_lengths, max_seq_length, doc_stride):
    encoding = SpanEncoding(
        VOCAB, True, None, max_seq_length, doc_stride, MAX_QUERY_LENGTH
    )
    questions = [
        Question("q", "a " * query, "a " * tokens)
        for tokens, query in zip(num_tokens, query_lengths, strict=True)
    ]
    return make_windows(questions, encoding, with_positions=False).windows


@pytest.mark.parametrize(
    ("max_seq_length", "doc_stride"),
    [(11, 1), (11, 2), (13, 5), (13, 128), (41, 1), (41, 11), (41, 128)],
)
def test_windows_are_those_of_numpy(max_seq_length, doc_stride):
    random = np.random.default_rng(max_seq_length * doc_stride)
    num_tokens = [0, 1, *random.integers(0, 61, 29), 0, 307, 0]
    query_lengths = random.integers(0, MAX_QUERY_LENGTH + 1, len(num_tokens))
    sizes = num_tokens, query_lengths, max_seq_length, doc_stride
    windows, expected = in_graph(*sizes), in_numpy(*sizes)
    assert windows.question.numpy().tolist() == [w.question for w in expected]
    assert windows.first.numpy().tolist() == [w.first for w in expected]
    is_max_context = [w.is_max_context.tolist() for w in expected]
    assert windows.is_max_context.to_list() == is_max_context
    origins = np.cumsum(num_tokens) - num_tokens
    # Every second character is a token.
    assert windows.tokens.to_list() == [
        (w.starts // 2 + origins[w.question]).tolist() for w in expected
    ]


def test_scores_of_windows_are_rounded_as_in_numpy():
    """The last window is 100 tokens shorter, and its score may be equal."""
    for num_tokens in range(217, 240, 3):
        sizes = [num_tokens], [0], 120, 100
        is_max_context = [w.is_max_context.tolist() for w in in_numpy(*sizes)]
        assert in_graph(*sizes).is_max_context.to_list() == is_max_context


@pytest.mark.parametrize("num_tokens", [[], [0], [0, 0, 0]])
def test_no_tokens_are_no_windows(num_tokens):
    windows = in_graph(num_tokens, [3] * len(num_tokens), 13, 5)
    assert windows.question.shape == windows.first.shape == [0]
    assert windows.tokens.to_list() == windows.is_max_context.to_list() == []


# --------------------------------------------------------------------- answers

S, DOC_STRIDE = 17, 4
# Contexts without tokens, with one window and with several.
NUM_TOKENS = np.array([7, 0, 1, 41, 12, 0, 29, 3, 13])
B = len(NUM_TOKENS)
QUERY_LENGTHS = np.arange(B) % 4


def contexts_of(random, letters):
    """Returns texts of letters, in tokens of 0 to 2, some out of order."""
    texts, starts, ends = [], [], []
    for count in NUM_TOKENS:
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
    """Returns the windows of a graph as those of `tasks.questions`."""
    origins = np.cumsum(NUM_TOKENS) - NUM_TOKENS
    return [
        Window(
            question,
            first,
            starts[question][np.array(tokens) - origins[question]],
            ends[question][np.array(tokens) - origins[question]],
            np.array(is_max_context),
        )
        for question, first, tokens, is_max_context in zip(
            windows.question.numpy(),
            windows.first.numpy(),
            windows.tokens.to_list(),
            windows.is_max_context.to_list(),
            strict=True,
        )
    ]


def found_in_arrays(texts, windows, logits, rules):
    """Returns the result of `find_answer` for every question."""
    own = [([], []) for _ in texts]
    for window, *both in zip(windows, *logits, strict=True):
        length = window.first + len(window.starts) + 1
        ranked = []
        for row in both:
            order = np.argsort(-row[:length], kind="stable")
            order = order[: rules.n_best_size]
            ranked += [order, row[order]]
        own[window.question][0].append(window)
        own[window.question][1].append(
            Scores(*ranked, *(row[0] for row in both))
        )
    return [
        find_answer(Question("q", "", text), *pair, rules)
        for text, pair in zip(texts, own, strict=True)
    ]


@pytest.mark.parametrize("n_best_size", [2, 5, 23])
@pytest.mark.parametrize("num_values", [4, 1000])
@pytest.mark.parametrize("letters", ["ab", "aé中🤗"])
def test_answers_are_those_of_numpy(letters, num_values, n_best_size):
    random = np.random.default_rng([len(letters), num_values, n_best_size])
    texts, starts, ends = contexts_of(random, letters)
    windows = spans.make_windows(
        tf.constant(NUM_TOKENS, tf.int64),
        tf.constant(QUERY_LENGTHS, tf.int64),
        S,
        DOC_STRIDE,
    )
    arrays = in_arrays(windows, starts, ends)
    is_token = np.arange(S) < [[w.first + len(w.starts) + 1] for w in arrays]
    logits = [
        np.where(is_token, values, NEVER).astype("float32")
        for values in random.integers(0, num_values, (2, len(arrays), S))
    ]
    contexts = in_tensors(texts, starts, ends)
    rules = AnswerRules(
        n_best_size=n_best_size, max_answer_length=5, with_negative=True
    )
    allowed = spans.allowed_spans(contexts, windows, *logits, rules)
    best = spans.best_distinct(allowed, contexts, n_best_size)
    listed = spans.with_null(
        spans.in_rows(best, B, n_best_size),
        spans.null_scores(windows, *logits, B),
    )
    slices = contexts.slices(
        tf.range(B)[:, tf.newaxis], listed.begins, listed.ends
    ).numpy()
    expected = found_in_arrays(texts, arrays, logits, rules)
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
    return spans.Spans(
        tf.constant(question, tf.int64),
        tf.constant(begins),
        tf.constant(ends),
        tf.constant(scores, tf.float64),
    )


def test_texts_are_distinct_in_each_question():
    contexts = in_tensors(["abab", "ab"], [[], []], [[], []])
    candidates = spans_of(
        [0, 0, 0, 1, 1], [0, 2, 1, 0, 1], [2, 4, 2, 2, 2], [1, 2, 0, 3, 4]
    )
    best = spans.best_distinct(candidates, contexts, 5)
    assert best.question.numpy().tolist() == [0, 0, 1, 1]
    assert best.begins.numpy().tolist() == [2, 1, 1, 0]
    assert best.ends.numpy().tolist() == [4, 2, 2, 2]


def test_texts_are_made_of_the_best_ranks_only(monkeypatch):
    """The number of ranks doubles while texts are equal."""
    sizes = []
    slices = Contexts.slices

    def counting(self, context, begins, ends):
        sizes.append(len(begins))
        return slices(self, context, begins, ends)

    monkeypatch.setattr(Contexts, "slices", counting)
    many = np.arange(307, dtype="int32")
    candidates = spans_of(many * 0, many, many + 1, -1.0 * many)
    different = in_tensors(["".join(map(chr, range(307)))], [[]], [[]])
    best = spans.best_distinct(candidates, different, 3)
    assert best.begins.numpy().tolist() == [0, 1, 2]
    assert sizes == [12]
    sizes.clear()
    same = in_tensors(["a" * 100 + "b" + "c" * 206], [[]], [[]])
    best = spans.best_distinct(candidates, same, 2)
    assert best.begins.numpy().tolist() == [0, 100]
    assert sizes == [8, 16, 32, 64, 128]
    assert len(spans.best_distinct(candidates, same, 4).begins) == 3


def test_only_no_answer_can_be_one_more():
    answers = spans.NBest(
        tf.constant([[5.0, 3], [5, 3], [5, 3], [NEVER, NEVER]], tf.float64),
        tf.constant([[1, 2], [1, 2], [1, 2], [-1, -1]]),
        tf.constant([[3, 4], [3, 4], [3, 4], [-1, -1]]),
    )
    null = tf.constant([3.0, 4, 9, 0], tf.float64)
    scores, begins, ends = spans.with_null(answers, null)
    assert scores.numpy().tolist() == [
        [5, 3, 3],
        [5, 4, NEVER],
        [9, 5, NEVER],
        [0, NEVER, NEVER],
    ]
    assert begins[:, :2].numpy().tolist() == [
        *([1, 2], [1, -1]),
        *([-1, 1], [-1, -1]),
    ]
    assert ends[0].numpy().tolist() == [3, 4, -1]
