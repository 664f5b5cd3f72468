"""`Question`: what SQuAD asks of a text, before any tokenization."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from bert_tf.data import cache, processes
from bert_tf.data.processes import Faults
from bert_tf.data.schema import Schema, span_schema
from bert_tf.errors import InputError
from bert_tf.tasks.encoding import TextEncoding
from bert_tf.tokenization.wordpiece import FullTokenizer

# `Question`: what SQuAD asks of a text, before any tokenization.


# How much likelier no answer is where no span can be one. JSON has no infinity;
# this is above all differences of logits, and the number that the original
# takes for the null score before it has seen a window.
ODDS_WITHOUT_SPAN = 1e6


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """A right answer, a slice of the context.

    Attributes:
      text: What it says.
      start: Which character (code point) of the context it starts at; -1
        where the file does not tell.
    """

    text: str
    start: int


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A question and the text that answers it, or does not.

    Attributes:
      id: The file's own id; no two questions have the same.
      question: What is asked.
      context: Where the answer is to be found.
      answers: The answers that the file gives; training uses the first.
      is_impossible: Whether the context has no answer. Then there may be
        answers all the same, which only look like one.
      where: The place it was read from, for messages.
    """

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...] = ()
    is_impossible: bool = False
    where: str = ""

    @property
    def name(self) -> str:
        """Its id and its place, for messages."""
        return f"{self.id!r} ({self.where})"


# Questions to windows: `[CLS] question [SEP] part of the context [SEP]`.


FIRST_UNIQUE_ID = 1_000_000_000

# [CLS] and a [SEP] behind the question and behind the window.
_NUM_SPECIAL = 3


@dataclasses.dataclass(frozen=True)
class SpanEncoding(TextEncoding):
    """How questions become windows.

    Attributes, beside those of `TextEncoding`:
      doc_stride: Pieces from the start of a window to that of the next, if the
        window is not shorter.
      max_query_length: Pieces of a question that are kept.

    Raises:
      InputError: The numbers leave no room for the context.
    """

    doc_stride: int = 128
    max_query_length: int = 64

    def __post_init__(self) -> None:
        if self.max_query_length < 1 or self.doc_stride < 1:
            raise InputError(
                "Expected max_query_length and doc_stride to be at least 1. "
                f"Received: {self.max_query_length} and {self.doc_stride}"
            )
        if self.max_seq_length <= self.max_query_length + _NUM_SPECIAL:
            raise InputError(
                "Expected max_seq_length to be greater than max_query_length "
                f"+ {_NUM_SPECIAL}, for the context beside the question and "
                f"[CLS], [SEP], [SEP]. Received: {self.max_seq_length} and "
                f"{self.max_query_length}"
            )

    @property
    def schema(self) -> Schema:
        """What the records hold."""
        return span_schema(self.max_seq_length)


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """What leads from places of a sequence back to the context.

    Attributes:
      question: Which question it is of, from 0, of those given.
      first: The place of its first piece of the context; the others follow.
      starts: int32 [n], the character of the context each piece starts at.
      ends: int32 [n], the character behind each piece.
      is_max_context: bool [n], whether no other window shows the piece with
        more around it, nor an earlier one with as much.
    """

    question: int
    first: int
    starts: np.ndarray
    ends: np.ndarray
    is_max_context: np.ndarray


class Windows(NamedTuple):
    """What becomes of some questions.

    Attributes:
      batch: For the features of the schema an int32 array [w, *shape] each.
      windows: The window of each row, those of a question in their order.
      faults: What is to be told of the questions.
    """

    batch: dict[str, np.ndarray]
    windows: list[Window]
    faults: Faults


class _Pieces(NamedTuple):
    """A context in pieces: ids and characters, each int32 [n]."""

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


class _Tokenized(NamedTuple):
    """A question in pieces.

    Attributes:
      query: int32 [m], ids of the question, cut.
      pieces: The context; nothing of it where the question is left out.
      target: First and last piece of the answer, None for no answer.
    """

    query: np.ndarray
    pieces: _Pieces
    target: tuple[int, int] | None


class _Spans(NamedTuple):
    """Which part of a context each window shows; each an int array [w]."""

    question: np.ndarray
    start: np.ndarray
    length: np.ndarray


def make_windows(
    questions: Sequence[Question],
    encoding: SpanEncoding,
    with_positions: bool,
    first_unique_id: int = FIRST_UNIQUE_ID,
) -> Windows:
    """Tokenizes questions and shows each beside all of its context.

    A context without any piece has no window. For training, a question has
    none either whose first answer is missing or covers no piece. Memory goes
    with the number of windows, so give a few thousand questions at a time,
    those of a paragraph together: their context is tokenized once.

    Args:
      questions: What to encode. The text of an answer counts by its length
        alone; that it stands at its place is for the reader to check.
      encoding: How.
      with_positions: Whether to train on them: to find the first answer of
        each and leave out what has none. Otherwise the batch has neither
        `start_positions`, `end_positions` nor `is_impossible`, as in the
        original.
      first_unique_id: The number of the first window, the others' follow.

    Raises:
      InputError: The vocabulary lacks a special token.
    """
    faults = Faults()
    tokenized = list(_tokenize(questions, encoding, with_positions, faults))
    spans = _spans(
        np.array([len(t.pieces.ids) for t in tokenized], int),
        encoding.max_seq_length
        - _NUM_SPECIAL
        - np.array([len(t.query) for t in tokenized], int),
        encoding.doc_stride,
    )
    windows = list(_windows(tokenized, spans))
    firsts = np.array([window.first for window in windows], int)
    batch = {
        "unique_ids": first_unique_id + np.arange(len(windows)),
        **_sequences(tokenized, spans, firsts, encoding),
    }
    if with_positions:
        starts, ends = _positions(tokenized, spans, firsts)
        _note_cut_answers(questions, tokenized, spans, ends, faults)
        impossible = np.array([q.is_impossible for q in questions], np.int32)
        batch["start_positions"] = starts
        batch["end_positions"] = ends
        batch["is_impossible"] = impossible[spans.question]
    batch = {name: array.astype(np.int32) for name, array in batch.items()}
    return Windows(batch, windows, faults)


def parts_of_questions(
    questions: Sequence[Question], encoding: SpanEncoding, num_windows: int
) -> Iterator[Sequence[Question]]:
    """Cuts questions into parts of about so many windows, to bound memory.

    A window is taken to be as wide as `doc_stride` is long, and a piece to be
    three characters: no text has to be tokenized to know. A single question
    may take more.
    """
    sizes = [
        1 + len(question.context) // (3 * encoding.doc_stride)
        for question in questions
    ]
    ends = np.cumsum(sizes)
    start = 0
    while start < len(questions):
        before = ends[start] - sizes[start]
        end = int(np.searchsorted(ends, before + num_windows, side="right"))
        end = max(end, start + 1)
        yield questions[start:end]
        start = end


# ----------------------------------------------------------------- the pieces


def _tokenize(
    questions: Sequence[Question],
    encoding: SpanEncoding,
    with_positions: bool,
    faults: Faults,
) -> Iterator[_Tokenized]:
    tokenizer = encoding.tokenizer
    contexts: dict[str, _Pieces] = {}
    for question in questions:
        query = np.array(tokenizer.encode(question.question), np.int32)
        if len(query) > encoding.max_query_length:
            kind = "Questions cut to max_query_length"
            faults.add(kind, f"{question.name}: {len(query)} pieces")
        if question.context not in contexts:
            contexts[question.context] = _pieces(question.context, tokenizer)
        pieces, target = contexts[question.context], None
        if not len(pieces.ids):
            kind = "Questions whose context has no token have no window"
            faults.add(kind, question.name)
        elif with_positions and not question.is_impossible:
            target = _target(question, pieces, faults)
            if target is None:
                pieces = _pieces("", tokenizer)
        yield _Tokenized(query[: encoding.max_query_length], pieces, target)


def _pieces(context: str, tokenizer: FullTokenizer) -> _Pieces:
    tokens = tokenizer.tokenize_with_offsets(context)
    columns = [(token.id, token.start, token.end) for token in tokens]
    return _Pieces(*np.array(columns, np.int32).reshape(-1, 3).T.copy())


def _target(
    question: Question, pieces: _Pieces, faults: Faults
) -> tuple[int, int] | None:
    """First and last piece of the answer; None and a fault for none."""
    if not question.answers:
        faults.add("Questions without an answer were left out", question.name)
        return None
    target = _covered(question.answers[0], pieces)
    if target is None:
        kind = "Questions whose answer has no token were left out"
        text = question.answers[0].text
        faults.add(kind, f"{question.name}: {text!r}")
    return target


def _covered(answer: Answer, pieces: _Pieces) -> tuple[int, int] | None:
    """First and last of the pieces that have a character in an answer."""
    end = answer.start + len(answer.text)
    [inside] = np.nonzero((pieces.starts < end) & (pieces.ends > answer.start))
    return (inside[0], inside[-1]) if len(inside) else None


# ---------------------------------------------------------------- the windows


def _spans(num_pieces: np.ndarray, room: np.ndarray, doc_stride: int) -> _Spans:
    """Lays windows over contexts, as many as it takes to reach the end.

    Args:
      num_pieces: int [q], pieces of the context of each question.
      room: int [q], pieces that a window of it can show.
      doc_stride: Pieces between two starts; never more than a window.
    """
    step = np.minimum(room, doc_stride)
    steps = -(-np.maximum(num_pieces - room, 0) // step)
    counts = np.where(num_pieces > 0, 1 + steps, 0)
    question = np.repeat(np.arange(len(counts)), counts)
    start = _ranks(counts) * step[question]
    length = np.minimum(room[question], num_pieces[question] - start)
    return _Spans(question, start, length)


def _ranks(counts: np.ndarray) -> np.ndarray:
    """0, 1, 2... for each of the counts, one behind the other."""
    firsts = np.cumsum(counts) - counts
    return np.arange(counts.sum()) - np.repeat(firsts, counts)


def _windows(
    tokenized: Sequence[_Tokenized], spans: _Spans
) -> Iterator[Window]:
    offset, is_max_context = 0, _max_context(spans)
    parts = zip(*(column.tolist() for column in spans), strict=True)
    for question, start, length in parts:
        query, pieces, _ = tokenized[question]
        shown = slice(start, start + length)
        yield Window(
            question,
            len(query) + 2,
            pieces.starts[shown],
            pieces.ends[shown],
            is_max_context[offset : offset + length],
        )
        offset += length


def _max_context(spans: _Spans) -> np.ndarray:
    """Tells for each piece of each window whether it is the one to count.

    The original's `_check_is_max_context`, for all pieces at once: the score
    of a window is the lesser of the pieces to the left and to the right, plus
    a hundredth of its length; of equal ones the first counts.

    Returns:
      bool, as many as all windows have pieces, window after window.
    """
    window = np.repeat(np.arange(len(spans.length)), spans.length)
    left = _ranks(spans.length)
    length = spans.length[window]
    score = np.minimum(left, length - 1 - left) + 0.01 * length
    # Number the pieces of all contexts: a context starts where the last
    # window of the one before it ends.
    ends = spans.start + spans.length
    sizes = np.zeros(spans.question.max(initial=-1) + 1, int)
    np.maximum.at(sizes, spans.question, ends)
    origin = (np.cumsum(sizes) - sizes)[spans.question]
    piece = (origin + spans.start)[window] + left
    best = np.zeros(sizes.sum())
    np.maximum.at(best, piece, score)
    is_best = score == best[piece]
    owner = np.full(len(best), len(spans.length))
    np.minimum.at(owner, piece[is_best], window[is_best])
    return owner[piece] == window


def _sequences(
    tokenized: Sequence[_Tokenized],
    spans: _Spans,
    firsts: np.ndarray,
    encoding: SpanEncoding,
) -> dict[str, np.ndarray]:
    """Packs and pads the windows; each an array [w, max_seq_length]."""
    vocab = encoding.tokenizer.vocab
    cls_id, sep_id = [vocab["[CLS]"]], [vocab["[SEP]"]]
    input_ids = np.zeros([len(firsts), encoding.max_seq_length], np.int32)
    for row, question, start, length in zip(input_ids, *spans, strict=True):
        query, pieces, _ = tokenized[question]
        shown = pieces.ids[start : start + length]
        parts = cls_id, query, sep_id, shown, sep_id
        np.concatenate(parts, out=row[: sum(map(len, parts))])
    place = np.arange(encoding.max_seq_length)
    input_mask = place < (firsts + spans.length + 1)[:, np.newaxis]
    segment_ids = input_mask & (place >= firsts[:, np.newaxis])
    return {
        "input_ids": input_ids,
        "input_mask": input_mask,
        "segment_ids": segment_ids,
    }


# ---------------------------------------------------------------- the answers


def _positions(
    tokenized: Sequence[_Tokenized], spans: _Spans, firsts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Places of the answer in each window; 0 where it is not, or in part."""
    # Before every window, where there is no answer.
    targets = [(-1, -1) if t.target is None else t.target for t in tokenized]
    begin, end = np.array(targets, int).reshape(-1, 2)[spans.question].T
    is_inside = (begin >= spans.start) & (end < spans.start + spans.length)
    shift = firsts - spans.start
    return is_inside * (begin + shift), is_inside * (end + shift)


def _note_cut_answers(
    questions: Sequence[Question],
    tokenized: Sequence[_Tokenized],
    spans: _Spans,
    end_positions: np.ndarray,
    faults: Faults,
) -> None:
    held = np.zeros(len(questions), int)
    np.maximum.at(held, spans.question, end_positions)
    for question, text, place in zip(questions, tokenized, held, strict=True):
        if text.target is not None and not place:
            kind = "Answers that no window holds whole, taken for none"
            faults.add(kind, f"{question.name}: {question.answers[0].text!r}")


# Questions to records of windows, kept as `cache` does.


_WINDOWS_PER_PART = 1 << 11


def write_windows(
    path: str,
    questions: Sequence[Question],
    encoding: SpanEncoding,
    *,
    sources: Iterable[str] = (),
    reading: Mapping[str, Any] | None = None,
) -> bool:
    """Writes the windows of questions to train on, unless they are there.

    Args:
      path: The TFRecord file; `files.manifest_path` of it is written too.
      questions: What to write, in this order.
      encoding: How.
      sources: The files that the questions came from.
      reading: What else decided on the questions; whatever JSON can hold.

    Returns:
      Whether anything was written: False if the file was good already.

    Raises:
      InputError: A file cannot be read or written.
    """
    key = cache.key(encoding, map(content, questions), sources, reading)
    kept = cache.write_records(path, key, lambda: _parts(questions, encoding))
    logging.info(
        "%s: %s windows of %s questions",
        path,
        f"{kept.num_records:,}",
        f"{len(questions):,}",
    )
    return kept.is_new


def count_windows(questions: Sequence[Question], encoding: SpanEncoding) -> int:
    """How many windows there are to train on; warns of what is left out."""
    faults, count = Faults(), 0
    for some in parts_of_questions(questions, encoding, _WINDOWS_PER_PART):
        made = make_windows(some, encoding, with_positions=True)
        faults.update(made.faults)
        count += len(made.windows)
    faults.tell()
    return count


def content(question: Question) -> bytes:
    """What of a question shows in its records."""
    answers = [(answer.text, answer.start) for answer in question.answers]
    return repr(
        (
            question.question,
            question.context,
            answers,
            question.is_impossible,
        )
    ).encode()


def _parts(
    questions: Sequence[Question], encoding: SpanEncoding
) -> Iterator[cache.Part]:
    """The pieces of the file, in order."""
    unique_id = FIRST_UNIQUE_ID
    for some in processes.track(
        parts_of_questions(questions, encoding, _WINDOWS_PER_PART),
        len,
        "Tokenizing",
        "questions",
        len(questions),
    ):
        made = make_windows(some, encoding, True, unique_id)
        unique_id += len(made.windows)
        yield cache.make_part(encoding.schema, made.batch)
