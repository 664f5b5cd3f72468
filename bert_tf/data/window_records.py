"""Questions to records of windows, kept as `cache` does.

The records are the original's (`FeatureWriter` of `run_squad.py`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from bert_tf.data import cache, progress
from bert_tf.data.faults import Faults
from bert_tf.data.questions import Question
from bert_tf.data.windows import (
    FIRST_UNIQUE_ID,
    SpanEncoding,
    make_windows,
    parts_of_questions,
)

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
    for some in progress.track(
        parts_of_questions(questions, encoding, _WINDOWS_PER_PART),
        len,
        "Tokenizing",
        "questions",
        len(questions),
    ):
        made = make_windows(some, encoding, True, unique_id)
        unique_id += len(made.windows)
        yield cache.make_part(encoding.schema, made.batch)
