"""Answers from logits as run_squad.py of google-research/bert computes them.

Written from the description of its behavior: words between white space, a text
rebuilt from tokens and searched in the words (`final_text`), sorted lists. It
shares only the windows with bert_tf.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_tf.kinds.spans.squad_files import PLACES
from bert_tf.kinds.spans.task import AnswerRules, Prediction, find_answer
from tests.tokenization import tokenization_oracle

WHITE_SPACE = " \t\r\n\u202f"


class Crash(Exception):
    """The original fails with this error."""


class Window(NamedTuple):
    """The characters of the context tokens of a window, from `first` on."""

    first: int
    starts: np.ndarray
    ends: np.ndarray
    is_max_context: np.ndarray


class Candidate(NamedTuple):
    window: int
    start: int
    end: int
    start_logit: float
    end_logit: float


@functools.lru_cache(maxsize=1)
def words_of(context):
    """Returns the words of a text and the word of each character."""
    words, word_of_character, inside = [], [], False
    for character in context:
        if character in WHITE_SPACE:
            inside = False
        elif inside:
            words[-1] += character
        else:
            words.append(character)
            inside = True
        word_of_character.append(len(words) - 1)
    return words, word_of_character


def best_indexes(logits, count):
    """Returns the positions of the highest logits, equal ones in order."""
    indexes = sorted(range(len(logits)), key=lambda i: logits[i], reverse=True)
    return indexes[:count]


def final_text(predicted, original, do_lower_case):
    """Searches for normalized text in the words it was made from."""
    normal = " ".join(
        tokenization_oracle.basic_tokenize(original, do_lower_case)
    )
    first = normal.find(predicted)
    last = first + len(predicted) - 1
    letters = [i for i, c in enumerate(original) if c != " "]
    normal_letters = [i for i, c in enumerate(normal) if c != " "]
    if first < 0 or len(letters) != len(normal_letters):
        return original
    if first not in normal_letters or last not in normal_letters:
        return original
    begin = letters[normal_letters.index(first)]
    end = letters[normal_letters.index(last)]
    return original[begin : end + 1]


def text_of(candidate, window, pieces, context, do_lower_case):
    """Returns the text of a span that is not the null answer."""
    words, word_of_character = words_of(context)
    shown = pieces[candidate.start : candidate.end + 1]
    predicted = " ".join(shown).replace(" ##", "").replace("##", "")
    predicted = " ".join(predicted.split())
    first, last = (
        word_of_character[window.starts[place - window.first]]
        for place in (candidate.start, candidate.end)
    )
    original = " ".join(words[first : last + 1])
    return final_text(predicted, original, do_lower_case)


def candidates_of(number, window, starts, ends, n_best_size, max_length):
    """Returns every allowed span of a window, in the order of ranks."""
    pieces = range(window.first, window.first + len(window.starts))
    found = []
    for start in best_indexes(starts, n_best_size):
        for end in best_indexes(ends, n_best_size):
            if start not in pieces or end not in pieces:
                continue
            if not window.is_max_context[start - window.first]:
                continue
            if end < start or end - start + 1 > max_length:
                continue
            logits = float(starts[start]), float(ends[end])
            found.append(Candidate(number, start, end, *logits))
    return found


def null_candidate(starts, ends):
    """Returns no answer, from the first window with the least score."""
    scores = [
        float(s[0]) + float(e[0]) for s, e in zip(starts, ends, strict=True)
    ]
    window = scores.index(min(scores))
    logits = float(starts[window][0]), float(ends[window][0])
    return Candidate(window, 0, 0, *logits)


def probabilities_of(scores):
    weights = [math.exp(score - max(scores)) for score in scores]
    return [weight / sum(weights) for weight in weights]


def nbest_of(candidates, text_of_candidate, n_best_size):
    """Returns logits by text, the best first, each text once."""
    nbest = {}
    for candidate in candidates:
        if len(nbest) >= n_best_size:
            break
        text = text_of_candidate(candidate) if candidate.start > 0 else ""
        nbest.setdefault(text, (candidate.start_logit, candidate.end_logit))
    return nbest


def entries_of(nbest):
    """Returns the entries of nbest_predictions.json."""
    probabilities = probabilities_of([sum(x) for x in nbest.values()])
    return [
        {
            "text": text,
            "probability": probability,
            "start_logit": start_logit,
            "end_logit": end_logit,
        }
        for (text, (start_logit, end_logit)), probability in zip(
            nbest.items(), probabilities, strict=True
        )
    ]


def decide(entries, null, threshold):
    """Returns the prediction for SQuAD 2.0."""
    spans = [entry for entry in entries if entry["text"]]
    if not spans:
        raise Crash("AttributeError: no answer but the null answer")
    best = spans[0]
    null_score = null.start_logit + null.end_logit
    odds = null_score - best["start_logit"] - best["end_logit"]
    text = "" if odds > threshold else best["text"]
    return Prediction(text, entries, odds, best["text"])


def original_answer(
    context: str,
    windows: Sequence,
    pieces: Sequence[Sequence[str]],
    starts: Sequence[Sequence[float]],
    ends: Sequence[Sequence[float]],
    do_lower_case: bool,
    *,
    n_best_size: int = 20,
    max_answer_length: int = 30,
    with_negative: bool = False,
    null_score_diff_threshold: float = 0.0,
) -> Prediction:
    """Returns the answer of the original to one question.

    Args:
      context: The context.
      windows: The windows of this question.
      pieces: The tokens of each window's sequence.
      starts: The logits of a start of each window, [S].
      ends: The logits of an end of each window, [S].
      do_lower_case: Whether the vocabulary is uncased.

    The others are flags of the original; version_2_with_negative is short.

    Raises:
      Crash: If the original crashes.
    """
    if with_negative and not windows:
        raise Crash("IndexError: no window to take the null answer from")
    candidates = []
    for number, window in enumerate(windows):
        logits = starts[number], ends[number]
        candidates += candidates_of(
            number, window, *logits, n_best_size, max_answer_length
        )
    if with_negative:
        null = null_candidate(starts, ends)
        candidates.append(null)
    candidates.sort(key=lambda c: c.start_logit + c.end_logit, reverse=True)

    def text_of_candidate(c):
        shown = windows[c.window], pieces[c.window]
        return text_of(c, *shown, context, do_lower_case)

    nbest = nbest_of(candidates, text_of_candidate, n_best_size)
    if with_negative:
        nbest.setdefault("", (null.start_logit, null.end_logit))
        return decide(entries_of(nbest), null, null_score_diff_threshold)
    entries = entries_of(nbest or {"empty": (0.0, 0.0)})
    text = entries[0]["text"]
    return Prediction(text, entries, None, text)


def outputs_of(windows: Sequence[Window], starts, ends) -> dict:
    """Returns what `find_answer` needs, from logits of windows [w, S].

    The logits of padding are -inf.
    """
    starts, ends = (np.asarray(x, np.float32) for x in (starts, ends))
    places = {name: np.zeros(starts.shape, np.int32) for name in PLACES}
    for row, (first, *columns) in enumerate(windows):
        for name, values in zip(PLACES, columns, strict=True):
            places[name][row, first : first + len(values)] = values
    outputs = dict(places)
    for name, logits in (("start", starts), ("end", ends)):
        order = np.argsort(-logits, axis=1, kind="stable")
        best = np.take_along_axis(logits, order, axis=1)
        outputs[f"{name}_indexes"] = np.where(best > -np.inf, order, -1)
        outputs[f"{name}_logits"] = best
        outputs[f"null_{name}_logits"] = logits[:, 0]
    return outputs


def window_of(batch, row) -> Window:
    """Returns a window of `make_windows`."""
    columns = [batch[name][row] for name in PLACES]
    [own] = np.nonzero(columns[1])
    first = int(own[0]) if len(own) else 0
    return Window(first, *(column[own] for column in columns))


def rows_of(made) -> list[np.ndarray]:
    """Returns the windows of each question."""
    rows = np.arange(made.counts.sum())
    return np.split(rows, np.cumsum(made.counts)[:-1])


def compare(question, rows, made, starts, ends, encoding, **options):
    """Answers a question in both ways.

    `rows` are its windows in `made`. Returns two `Prediction`, None for the
    original if it crashes.
    """
    own = [window_of(made.batch, row) for row in rows]
    outputs = outputs_of(own, starts[rows], ends[rows])
    ours = find_answer(question, outputs, AnswerRules(**options))
    pieces = [
        [encoding.vocab[index] for index in made.batch["input_ids"][row]]
        for row in rows
    ]
    try:
        original = original_answer(
            question.context,
            own,
            pieces,
            starts[rows],
            ends[rows],
            encoding.do_lower_case,
            **options,
        )
    except Crash:
        original = None
    return ours, original
