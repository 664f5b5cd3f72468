"""Questions to records of windows, kept as `cache` does.

The records are the original's (`FeatureWriter` of `run_squad.py`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from bert_tf.data import cache, progress
from bert_tf.data.faults import Faults
from bert_tf.data.questions import Question
from bert_tf.data.windows import FIRST_UNIQUE_ID, SpanEncoding, make_windows

_QUESTIONS_PER_PART = 1 << 10


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
    """The pieces of the file, in order; warns of what is left out."""
    faults = Faults()
    unique_id = FIRST_UNIQUE_ID
    starts = range(0, len(questions), _QUESTIONS_PER_PART)
    for start in progress.track(
        starts,
        lambda start: min(_QUESTIONS_PER_PART, len(questions) - start),
        "Tokenizing",
        "questions",
        len(questions),
    ):
        some = questions[start : start + _QUESTIONS_PER_PART]
        made = make_windows(some, encoding, True, unique_id)
        unique_id += len(made.windows)
        faults.update(made.faults)
        yield cache.make_part(encoding.schema, made.batch)
    faults.tell()
