"""Questions about a text: SQuAD files, windows of tokens, and their records.

SQuAD 1.1, SQuAD 2.0 and KorQuAD 1.0 share one JSON format: articles have
paragraphs, and a paragraph has a context and questions about it.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_tf.base import files
from bert_tf.base.processes import Faults
from bert_tf.data import cache
from bert_tf.data.schema import INPUTS, Feature, Schema, span_schema
from bert_tf.errors import in_file, listed, shortened, wrong_value
from bert_tf.tasks.encoding import Encoded, RowEncoding, pad
from bert_tf.tasks.windows import max_context, split_texts, window_spans

FIRST_UNIQUE_ID = 1_000_000_000

# The null odds of a question without any candidate span. JSON has no infinity;
# this exceeds all differences of logits, and is the value with which the
# original initializes the null score.
ODDS_WITHOUT_SPAN = 1e6

# [CLS] question [SEP] part of the context [SEP].
NUM_SPECIAL_TOKENS = 3

# A kind of fault.
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
    path: str,
    *,
    with_negative: bool,
    needs_answers: bool,
    reads_answers: bool = True,
) -> list[Question]:
    """Reads the questions of a file; counts skipped ones in a warning.

    Training skips a question if its context or first answer is empty, or if
    the first answer is not at its `answer_start`. Of several answers it uses
    the first; the original raises an error. Prediction keeps every question.

    Args:
      path: A JSON file.
      with_negative: Whether questions may be impossible, as in SQuAD 2.0. If
        False, `is_impossible` is ignored.
      needs_answers: Whether the questions are for training.
      reads_answers: If False, the `answers` field is ignored.

    Raises:
      InputError: If the file does not have the format, two questions have the
        same id, or no question is left.
    """
    faults = Faults()
    questions = []
    for question in _all_questions(
        path, with_negative, needs_answers, reads_answers
    ):
        reason = needs_answers and _why_untrainable(question, with_negative)
        if reason:
            kind, detail = reason
            faults.add(kind, f"{question.name}: {detail}")
        else:
            questions.append(question)
    faults.log()
    if not questions:
        use = " to train on" if needs_answers else ""
        count = faults.counts.total()
        advice = f"; all {count:,} were skipped" if count else ""
        raise in_file(path, f"the file has no questions{use}{advice}.")
    return questions


def _all_questions(
    path: str,
    with_negative: bool,
    needs_answers: bool,
    reads_answers: bool,
) -> Iterator[Question]:
    """Yields every question of a file, whether usable or not."""
    places: dict[str, str] = {}
    for paragraph, place in _paragraphs(path):
        context = _get(paragraph, "context", str, place)
        entries = _get(paragraph, "qas", list, place)
        for number, entry in enumerate(entries, start=1):
            where = f"{place}, question {number}"
            if isinstance(entry, dict) and type(entry.get("id")) is int:
                name = str(entry["id"])  # predictions.json has string keys.
            else:
                name = _get(entry, "id", str, where)
            is_impossible = False
            if with_negative and "is_impossible" in entry:
                is_impossible = _get(entry, "is_impossible", bool, where)
            answers: tuple[Answer, ...] = ()
            if reads_answers and "answers" in entry:
                answers = tuple(_answers(entry, where, needs_answers))
            text = _get(entry, "question", str, where)
            if name in places:
                raise in_file(
                    where,
                    f"the id {name!r} is already used at {places[name]}. Give "
                    "every question its own id.",
                )
            places[name] = where
            yield Question(name, text, context, answers, is_impossible, where)


def _paragraphs(path: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Yields every paragraph with its place in the file."""
    content = files.read_json(
        path, "SQuAD's format, an object with a list of articles as 'data'"
    )
    for number, article in enumerate(
        _get(content, "data", list, path), start=1
    ):
        place = f"{path}: article {number}"
        paragraphs = _get(article, "paragraphs", list, place)
        for count, paragraph in enumerate(paragraphs, start=1):
            yield paragraph, f"{place}, paragraph {count}"


def _answers(
    entry: dict[str, Any], where: str, needs_start: bool
) -> Iterator[Answer]:
    for number, answer in enumerate(
        _get(entry, "answers", list, where), start=1
    ):
        place = f"{where}, answer {number}"
        text, start = _get(answer, "text", str, place), -1
        if needs_start or "answer_start" in answer:
            start = _get(answer, "answer_start", int, place)
        yield Answer(text, start)


def _get(holder: Any, key: str, expected: type, where: str) -> Any:
    """Returns `holder[key]` of exactly this type: a bool is not an int."""
    if not isinstance(holder, dict):
        raise in_file(
            where, f"expected a JSON object; found {shortened(holder)}."
        )
    if key not in holder:
        keys = listed(holder, quote=True) or "no keys"
        raise in_file(where, f"expected the key {key!r}; found {keys}.")
    value = holder[key]
    if type(value) is not expected:
        raise in_file(
            where,
            f"{key!r} must be {_TYPE_NAMES[expected]}; got {shortened(value)}.",
        )
    return value


def _why_untrainable(
    question: Question, with_negative: bool
) -> tuple[str, str] | None:
    """Returns the kind of flaw and its details; None if there is no flaw."""
    if not question.context.strip():
        return "Questions with an empty context are skipped", "empty context"
    if question.is_impossible:
        return None
    if not question.answers or not question.answers[0].text.strip():
        kind = "Questions without an answer are skipped"
        if not with_negative:
            kind += " (SQuAD 2.0 needs `version_2_with_negative`)"
        return kind, "no answer"
    answer, context = question.answers[0], question.context
    start, end = answer.start, answer.start + len(answer.text)
    there = context[start:end] if start >= 0 else ""
    if there == answer.text:
        return None
    return (
        "Questions whose answer is not at its answer_start are skipped",
        f"the answer is {shortened(answer.text)}, but the context has "
        f"{shortened(there)} at answer_start {start}",
    )


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
        fields = dataclasses.fields(self)
        return AnswerEncoding(*(getattr(self, field.name) for field in fields))

    def fingerprint(self, example: Question) -> bytes:
        answers = [(answer.text, answer.start) for answer in example.answers]
        text, context = example.question, example.context
        return repr((text, context, answers, example.is_impossible)).encode()

    def split(
        self, examples: Iterable[Question], num_rows: int | None = None
    ) -> Iterator[list[Question]]:
        return split_texts(
            examples,
            lambda question: len(question.context),
            self.doc_stride,
            num_rows or self.rows_per_part,
        )

    def encode(self, examples: Sequence[Question]) -> Encoded:
        """Returns the windows of questions to train on; see `make_windows`."""
        encoded = make_windows(examples, self, with_positions=True)
        owners = [window.question for window in encoded.windows]
        counts = np.bincount(owners, minlength=len(examples))
        num_cut = encoded.faults.counts[_TRUNCATED]
        return Encoded(encoded.batch, counts, num_cut, encoded.faults)

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


# The characters of each token of a context, and whether this window has the
# most context around it; see `Window`. 0 for other tokens.
PLACES = ("token_starts", "token_ends", "is_max_context")


@dataclasses.dataclass(frozen=True)
class AnswerEncoding(SpanEncoding):
    """How questions become windows in which to find their answers.

    Rows have `PLACES`, [S], and whether they are the `is_first_window` of a
    question.
    """

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

    def encode(self, examples: Sequence[Question]) -> Encoded:
        """Returns the windows of questions; each has at least one."""
        batch, windows, faults = make_windows(examples, self, False)
        owners = np.array([window.question for window in windows], int)
        places = np.zeros((3, *batch["input_ids"].shape), np.int32)
        for row, window in enumerate(windows):
            own = slice(window.first, window.first + len(window.starts))
            columns = window.starts, window.ends, window.is_max_context
            places[:, row, own] = columns
        features = {
            **{name: batch[name] for name in INPUTS},
            **dict(zip(PLACES, places, strict=True)),
            "is_first_window": np.diff(owners, prepend=-1).astype(np.int32),
        }
        counts = np.bincount(owners, minlength=len(examples))
        return Encoded(features, counts, faults.counts[_TRUNCATED], faults)


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """Maps the positions of a sequence to characters of the context.

    "[CLS] who ran [SEP] bob ran . [SEP]" for the context "Bob ran." has the
    first 4, the starts 0, 4 and 7, and the ends 3, 7 and 8.

    Attributes:
      question: Index of the question.
      first: Position of the first context token; the others follow.
      starts: int32 [n], index of the first character of each context token.
      ends: int32 [n], index after the last character of each context token.
      is_max_context: bool [n], whether this is the window with the most
        context around the token; the first one on ties.
    """

    question: int
    first: int
    starts: np.ndarray
    ends: np.ndarray
    is_max_context: np.ndarray


class WindowRows(NamedTuple):
    """The windows of some questions.

    Attributes:
      batch: For each feature of the schema an int32 array [w, *shape].
      windows: The window of each row; windows of one question are adjacent.
      faults: Flaws of the questions, to be logged.
    """

    batch: dict[str, np.ndarray]
    windows: list[Window]
    faults: Faults


class _Tokens(NamedTuple):
    """The tokens of a context: ids and characters, each int32 [n]."""

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


def make_windows(
    questions: Sequence[Question],
    encoding: SpanEncoding,
    with_positions: bool,
) -> WindowRows:
    """Tokenizes questions and pairs each with windows over its context.

    A context without tokens has one window without them. In training it has
    none, and neither has an answerable question whose first answer is missing
    or covers no token. The memory needed
    grows with the number of windows, so pass a few thousand questions at a
    time, and keep the questions of a paragraph together: their context is
    tokenized once.

    Args:
      questions: The questions. An answer is located by its start and length;
        `read_questions` has checked its text.
      encoding: The tokenizer and the lengths.
      with_positions: Whether the windows are for training. If False, the batch
        has no `start_positions`, `end_positions` and `is_impossible`, as in
        the original.
    """
    faults = Faults()
    vocab = encoding.tokenizer.vocab
    cls_id, sep_id = vocab["[CLS]"], vocab["[SEP]"]
    windows: list[Window] = []
    sequences: list[list[int]] = []
    positions: list[tuple[int, int]] = []
    for number, query, context, target in _tokenize(
        questions, encoding, with_positions, faults
    ):
        first, is_whole = len(query) + 2, target is None
        room = encoding.max_seq_length - NUM_SPECIAL_TOKENS - len(query)
        spans = window_spans(len(context.ids), room, encoding.doc_stride)
        for (start, end), is_max in zip(
            spans, max_context(spans, len(context.ids)), strict=True
        ):
            windows.append(
                Window(
                    number,
                    first,
                    context.starts[start:end],
                    context.ends[start:end],
                    is_max,
                )
            )
            context_ids = context.ids[start:end].tolist()
            sequences.append([cls_id, *query, sep_id, *context_ids, sep_id])
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
    input_ids, input_mask = pad(sequences, encoding.max_seq_length)
    firsts = np.array([window.first for window in windows], int)
    is_context = np.arange(encoding.max_seq_length) >= firsts[:, np.newaxis]
    batch = {
        "unique_ids": FIRST_UNIQUE_ID + np.arange(len(windows)),
        "input_ids": input_ids,
        "input_mask": input_mask,
        "segment_ids": input_mask * is_context,
    }
    if with_positions:
        starts, ends = np.array(positions, int).reshape(-1, 2).T
        batch["start_positions"], batch["end_positions"] = starts, ends
        batch["is_impossible"] = np.array(
            [questions[window.question].is_impossible for window in windows]
        )
    batch = {name: array.astype(np.int32) for name, array in batch.items()}
    return WindowRows(batch, windows, faults)


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
