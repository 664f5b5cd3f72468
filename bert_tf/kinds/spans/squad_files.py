"""Questions about a text: SQuAD files, windows of tokens, and their records.

SQuAD 1.1, SQuAD 2.0 and KorQuAD 1.0 share one JSON format: articles have
paragraphs, and a paragraph has a context and questions about it.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from bert_tf.base import files
from bert_tf.base.processes import Faults
from bert_tf.data import cache
from bert_tf.data.records import INPUTS, Feature, Schema, span_schema
from bert_tf.errors import in_file, shortened, wrong_value
from bert_tf.tasks.encoding import (
    Encoded,
    RowEncoding,
    max_context,
    pad,
    window_spans,
)

FIRST_UNIQUE_ID = 1_000_000_000

# The null odds of a question without any candidate span. JSON has no infinity.
# This value exceeds all differences of logits; the original initializes the
# null score with it.
ODDS_WITHOUT_SPAN = 1e6

# [CLS] question [SEP] part of the context [SEP].
NUM_SPECIAL_TOKENS = 3

# The fault that `Encoded.num_cut` counts.
_TRUNCATED = "Questions truncated to `max_query_length`"

_TYPE_NAMES = {
    bool: "true or false",
    int: "a whole number",
    list: "a list",
    str: "a string",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """A correct answer, which is a slice of the context.

    Attributes:
      text: The text of the answer.
      start: Index of its first character (code point) in the context; -1 if
        the file does not say.
    """

    text: str
    start: int


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A question and the context that may contain the answer.

    Attributes:
      id: The unique id from the file.
      question: The text of the question.
      context: The text in which to find the answer.
      answers: The correct answers; training uses the first.
      is_impossible: Whether the context does not contain the answer. The file
        may still list plausible answers.
      where: The place in the file, for messages.
    """

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...] = ()
    is_impossible: bool = False
    where: str = ""

    @property
    def name(self) -> str:
        """The id and the place, for messages."""
        return f"{self.id!r} ({self.where})"


# ----------------------------------------------------------------- SQuAD files


def read_questions(
    path: str, *, with_negative: bool, needs_answers: bool
) -> list[Question]:
    """Reads the questions of a file; counts skipped ones in a warning.

    Training skips a question whose first answer is blank or not at its
    `answer_start`. Of several answers it uses the first; the original raises
    an error. Prediction keeps every question.

    Args:
      path: A JSON file.
      with_negative: Whether questions may be impossible, as in SQuAD 2.0. If
        False, `is_impossible` is ignored.
      needs_answers: Whether the questions are for training.

    Raises:
      InputError: If the file does not have the format, two questions have the
        same id, or no question is left.
    """
    faults = Faults()
    kind = "Questions without an answer at its answer_start are skipped"
    if not with_negative:
        kind += " (SQuAD 2.0 needs `version_2_with_negative`)"
    questions: list[Question] = []
    places: dict[str, str] = {}
    for question in _all_questions(path, with_negative, needs_answers):
        if question.id in places:
            raise in_file(
                question.where,
                f"the id {question.id!r} is already used at "
                f"{places[question.id]}. Give every question its own id.",
            )
        places[question.id] = question.where
        if needs_answers and not _is_trainable(question):
            faults.add(kind, question.name)
        else:
            questions.append(question)
    faults.log()
    if not questions:
        use = " to train on" if needs_answers else ""
        raise in_file(path, f"the file has no questions{use}.")
    return questions


def _all_questions(
    path: str, with_negative: bool, needs_start: bool
) -> Iterator[Question]:
    """Yields every question of a file, whether usable or not."""
    content = files.read_json(path)
    for article, at in _members(content, "data", path, ": article"):
        for paragraph, place in _members(
            article, "paragraphs", at, ", paragraph"
        ):
            context = _get(paragraph, "context", str, place)
            for entry, where in _members(paragraph, "qas", place, ", question"):
                if isinstance(entry, dict) and type(entry.get("id")) is int:
                    # predictions.json has string keys.
                    entry["id"] = str(entry["id"])
                name = _get(entry, "id", str, where)
                text = _get(entry, "question", str, where)
                is_impossible = False
                if with_negative and "is_impossible" in entry:
                    is_impossible = _get(entry, "is_impossible", bool, where)
                answers = tuple(_answers(entry, where, needs_start))
                yield Question(
                    name, text, context, answers, is_impossible, where
                )


def _answers(
    entry: dict[str, Any], where: str, needs_start: bool
) -> Iterator[Answer]:
    if "answers" not in entry:
        return
    for answer, place in _members(entry, "answers", where, ", answer"):
        text, start = _get(answer, "text", str, place), -1
        if needs_start or "answer_start" in answer:
            start = _get(answer, "answer_start", int, place)
        yield Answer(text, start)


def _members(
    holder: Any, key: str, where: str, name: str
) -> Iterator[tuple[Any, str]]:
    """Yields the members of a list with their places in the file."""
    for number, member in enumerate(_get(holder, key, list, where), start=1):
        yield member, f"{where}{name} {number}"


def _get(holder: Any, key: str, expected: type, where: str) -> Any:
    """Returns `holder[key]` of exactly this type: a bool is not an int."""
    value = holder.get(key) if isinstance(holder, dict) else None
    if type(value) is not expected:
        raise in_file(
            where,
            f"expected the key {key!r} with {_TYPE_NAMES[expected]}; found "
            f"{shortened(holder if value is None else value)}.",
        )
    return value


def _is_trainable(question: Question) -> bool:
    """Returns whether a question is impossible or has its answer in place."""
    if question.is_impossible or not question.answers:
        return question.is_impossible
    text, start = question.answers[0].text, question.answers[0].start
    there = question.context[start : start + len(text)]
    return bool(text.strip()) and start >= 0 and there == text


# --------------------------------------------------------------------- windows


@dataclasses.dataclass(frozen=True)
class SpanEncoding(RowEncoding[Question]):
    """How questions become rows, which are windows of tokens.

    Attributes, in addition to `TextEncoding`'s:
      doc_stride: Tokens from the start of a window to the start of the next.
      max_query_length: Largest number of tokens of a question.

    Raises:
      InputError: If the lengths leave no room for the context.
    """

    doc_stride: int = 128
    max_query_length: int = 64
    unit = cut_unit = "questions"
    _is_training: ClassVar[bool] = True

    def __post_init__(self) -> None:
        least = self.max_query_length + NUM_SPECIAL_TOKENS + 1
        if self.max_seq_length < least:
            raise wrong_value(
                "`max_seq_length`",
                f"at least {least} with "
                f"`max_query_length={self.max_query_length}`, to have room "
                "for the context, [CLS] and two [SEP]",
                self.max_seq_length,
            )

    @property
    def schema(self) -> Schema:
        return span_schema(self.max_seq_length)

    def for_answers(self) -> "AnswerEncoding":
        """Returns the encoding of the same questions for predictions."""
        return AnswerEncoding(**vars(self))

    def fingerprint(self, example: Question) -> bytes:
        answers = [(answer.text, answer.start) for answer in example.answers]
        text, context = example.question, example.context
        return repr((text, context, answers, example.is_impossible)).encode()

    def num_characters(self, example: Question) -> int:
        return len(example.context)

    def encode(self, examples: Sequence[Question]) -> Encoded:
        """Returns the windows of questions; see `make_windows`."""
        made = make_windows(examples, self, self._is_training)
        batch = {
            feature.name: made.batch[feature.name] for feature in self.schema
        }
        return made._replace(batch=batch)

    def make_blocks(
        self, parts: Iterable[Sequence[Question]], num_workers: int
    ) -> Iterator[cache.RecordBlock]:
        # In one process, because `unique_ids` continue from part to part.
        num_windows = 0
        for part in parts:
            encoded = self.encode(part)
            encoded.batch["unique_ids"] += num_windows
            num_windows += int(encoded.counts.sum())
            yield cache.make_block(
                self.schema, encoded.batch, encoded.num_cut, len(part)
            )


# The characters [start, end) of each token of a context, and whether this
# window has the most context around the token (the first window on ties). For
# the context "Bob ran.", "[CLS] who ran [SEP] bob ran . [SEP]" has the starts
# 0 0 0 0 0 4 7 0 and the ends 0 0 0 0 3 7 8 0.
PLACES = ("token_starts", "token_ends", "is_max_context")


@dataclasses.dataclass(frozen=True)
class AnswerEncoding(SpanEncoding):
    """How questions become windows in which to find their answers.

    Rows have `PLACES`, [S], and `is_first_window`, 1 for the first row of each
    question. Each question has at least one row.
    """

    _is_training = False

    @property
    def schema(self) -> Schema:
        length = (self.max_seq_length,)
        return (
            *(
                Feature(name, length, length_option="max_seq_length")
                for name in (*INPUTS, *PLACES)
            ),
            Feature("is_first_window", ()),
        )


class _Tokens(NamedTuple):
    """The tokens of a context: ids and characters, each int32 [n]."""

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


def make_windows(
    questions: Sequence[Question],
    encoding: SpanEncoding,
    with_positions: bool,
) -> Encoded:
    """Tokenizes questions and pairs each with windows over its context.

    A context without tokens has one window without them, but none in training.
    In training, an answerable question has no windows if its first answer is
    missing or covers no token. The memory needed grows with the number of
    windows, so pass a few thousand questions at a time. Keep the questions of a
    paragraph together: their context is tokenized once.

    Args:
      questions: The questions. An answer is located by its start and length;
        `read_questions` has checked its text.
      encoding: The tokenizer and the lengths.
      with_positions: Whether the windows are for training. If False, the batch
        has no `start_positions`, `end_positions` and `is_impossible`, as in
        the original.

    Returns:
      The rows, with the features of `SpanEncoding` and `AnswerEncoding`.
    """
    faults = Faults()
    vocab, length = encoding.tokenizer.vocab, encoding.max_seq_length
    cls_id, sep_id = vocab["[CLS]"], vocab["[SEP]"]
    owners: list[int] = []
    sequences: list[list[int]] = []
    firsts: list[int] = []
    columns: list[tuple[np.ndarray, ...]] = []
    positions: list[tuple[int, int]] = []
    for number, query, context, target in _tokenize(
        questions, encoding, with_positions, faults
    ):
        first, is_whole = len(query) + 2, target is None
        room = length - NUM_SPECIAL_TOKENS - len(query)
        spans = window_spans(len(context.ids), room, encoding.doc_stride)
        for (start, end), is_max in zip(
            spans, max_context(spans, len(context.ids)), strict=True
        ):
            owners.append(number)
            firsts.append(first)
            context_ids = context.ids[start:end].tolist()
            sequences.append([cls_id, *query, sep_id, *context_ids, sep_id])
            own = context.starts[start:end], context.ends[start:end], is_max
            columns.append(own)
            position = (0, 0)
            # The answer counts only where the window has all of it.
            if target and start <= target[0] and target[1] < end:
                shift, is_whole = first - start, True
                position = (target[0] + shift, target[1] + shift)
            positions.append(position)
        if not is_whole:
            text = questions[number].answers[0].text
            kind = "Answers that no window holds in full, trained as no answer"
            faults.add(kind, f"{questions[number].name}: {text!r}")
    input_ids, input_mask = pad(sequences, length)
    is_context = np.arange(length) >= np.array(firsts, int)[:, np.newaxis]
    places = np.zeros((len(PLACES), *input_ids.shape), np.int32)
    for row, of_row in enumerate(columns):
        first, end = firsts[row], firsts[row] + len(of_row[0])
        places[:, row, first:end] = of_row
    batch = {
        "unique_ids": FIRST_UNIQUE_ID + np.arange(len(owners)),
        "input_ids": input_ids,
        "input_mask": input_mask,
        "segment_ids": input_mask * is_context,
        **dict(zip(PLACES, places, strict=True)),
        "is_first_window": np.diff(owners, prepend=-1) > 0,
    }
    if with_positions:
        starts, ends = np.array(positions, int).reshape(-1, 2).T
        batch["start_positions"], batch["end_positions"] = starts, ends
        batch["is_impossible"] = np.array(
            [questions[owner].is_impossible for owner in owners]
        )
    batch = {name: array.astype(np.int32) for name, array in batch.items()}
    counts = np.bincount(np.array(owners, int), minlength=len(questions))
    return Encoded(batch, counts, faults.counts[_TRUNCATED], faults)


def _tokenize(
    questions: Sequence[Question],
    encoding: SpanEncoding,
    with_positions: bool,
    faults: Faults,
) -> Iterator[tuple[int, list[int], _Tokens, tuple[int, int] | None]]:
    """Yields the tokens of each question that has windows.

    Yields its index, its token ids, the context, and the first and last token
    of the answer, or None if training does not use the answer.
    """
    tokenizer, most = encoding.tokenizer, encoding.max_query_length
    contexts: dict[str, _Tokens] = {}
    for number, question in enumerate(questions):
        query = tokenizer.encode(question.question)
        if len(query) > most:
            faults.add(_TRUNCATED, f"{question.name}: {len(query)} tokens")
        if question.context not in contexts:
            columns = [
                (token.id, token.start, token.end)
                for token in tokenizer.tokenize_with_offsets(question.context)
            ]
            contexts[question.context] = _Tokens(
                *np.array(columns, np.int32).reshape(-1, 3).T.copy()
            )
        context, target = contexts[question.context], None
        if not len(context.ids):
            faults.add("Questions whose context has no token", question.name)
            if with_positions:
                continue
        if with_positions and not question.is_impossible:
            if question.answers:
                target = _tokens_of(question.answers[0], context)
            if target is None:
                kind = "Questions without an answer that has tokens are skipped"
                faults.add(kind, question.name)
                continue
        yield number, query[:most], context, target


def _tokens_of(answer: Answer, context: _Tokens) -> tuple[int, int] | None:
    """Returns the first and last token with a character of the answer."""
    end = answer.start + len(answer.text)
    [inside] = np.nonzero(
        (context.starts < end) & (context.ends > answer.start)
    )
    return (int(inside[0]), int(inside[-1])) if len(inside) else None
