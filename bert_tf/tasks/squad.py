"""Files of SQuAD 1.1, SQuAD 2.0 and KorQuAD 1.0 -> Questions.

They all hold articles, these paragraphs, and these a context and the questions
about it. Nothing is lost in silence: what is left out, or kept though it looks
odd, is counted and told.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from bert_tf import files
from bert_tf.data.processes import Faults
from bert_tf.errors import InputError
from bert_tf.tasks.questions import Answer, Question

_TYPE_NAMES = {
    bool: "true or false",
    dict: "an object",
    int: "a whole number",
    list: "a list",
    str: "a string",
}
_EXPECTED_FILE = (
    "a file of SQuAD's kind, an object with a list of articles as 'data'"
)
# A message shows no more of a text than that.
_MAX_SHOWN = 60


class Reading(NamedTuple):
    """What a file holds.

    Attributes:
      questions: In the order of the file, at least one.
      faults: What was told of them.
    """

    questions: list[Question]
    faults: Faults


class _Fault(NamedTuple):
    """Why a question is of no use for training."""

    kind: str
    received: str


def read_questions(
    path: str,
    *,
    with_negative: bool,
    needs_answers: bool,
    reads_answers: bool = True,
    strict: bool = False,
) -> Reading:
    """Reads the questions of a file and warns of what is wrong with them.

    For training, a question is left out if its context or its answer is empty
    or its first answer is not at the place that the file says. For prediction
    every question is kept, whatever its answers, for an answer to each is due.
    Training uses the first answer of several, where the original stops.

    Args:
      path: A JSON file.
      with_negative: Whether questions may be impossible, as those of SQuAD
        2.0; otherwise `is_impossible` is not looked at.
      needs_answers: Whether they are for training.
      reads_answers: Whether the answers are of use; without, nobody looks at
        them, whatever the file has there.
      strict: Whether to stop at a question that would be left out.

    Raises:
      InputError: The file is not such a file, two questions have one id, or
        no question is left.
    """
    faults = Faults()
    questions = []
    num_left_out = 0
    for question in _all_questions(
        path, with_negative, needs_answers, reads_answers, faults
    ):
        fault = _fault(question, with_negative) if needs_answers else None
        if fault and strict:
            raise InputError(
                "Expected every question to be of use for training. Received: "
                f"{fault.received} in {question.name}; mend it, or do "
                "without --strict to leave such questions out"
            )
        if fault:
            num_left_out += 1
            faults.add(fault.kind, f"{question.name}: {fault.received}")
        else:
            _note_oddities(question, needs_answers, faults)
            questions.append(question)
    faults.tell()
    if not questions:
        use = " to train on" if needs_answers else ""
        raise InputError(
            f"Expected questions{use} in {path}. Received: "
            f"{'none but those left out' if num_left_out else 'none'}"
        )
    return Reading(questions, faults)


def _all_questions(
    path: str,
    with_negative: bool,
    needs_answers: bool,
    reads_answers: bool,
    faults: Faults,
) -> Iterator[Question]:
    """Every question of a file, usable or not.

    Raises:
      InputError: The file is not such a file or two questions have one id.
    """
    places: dict[str, str] = {}
    for paragraph, place in _paragraphs(path, faults):
        context = _value(paragraph, "context", str, "paragraph", place)
        entries = _value(paragraph, "qas", list, "paragraph", place)
        if not entries:
            faults.add("Paragraphs without questions", place)
        for number, entry in enumerate(entries, start=1):
            where = f"{place}, question {number}"
            name = _id(entry, where)
            is_impossible = with_negative and _is_impossible(entry, where)
            if not with_negative and entry.get("is_impossible") is True:
                kind = (
                    "Questions said to be impossible, which counts with "
                    "--version_2_with_negative alone"
                )
                faults.add(kind, where)
            answers = _answers(entry, where, needs_answers)
            question = Question(
                id=name,
                question=_value(entry, "question", str, "question", where),
                context=context,
                answers=tuple(answers) if reads_answers else (),
                is_impossible=is_impossible,
                where=where,
            )
            other = places.setdefault(question.id, where)
            if other is not where:
                raise InputError(
                    "Expected an id of its own for every question. Received: "
                    f"{question.id!r} at {other} and at {where}"
                )
            yield question


def _paragraphs(
    path: str, faults: Faults
) -> Iterator[tuple[dict[str, Any], str]]:
    """Yields the paragraphs and where they stand."""
    content = files.read_json(path, _EXPECTED_FILE)
    if "data" not in content:
        raise InputError(
            f"Expected {_EXPECTED_FILE}. Received: {_keys(content)} in {path}"
        )
    articles = content["data"]
    if not isinstance(articles, list):
        raise InputError(
            f"Expected {_EXPECTED_FILE}. Received: {files.json_type(articles)} "
            f"as 'data' in {path}"
        )
    for number, article in enumerate(articles, start=1):
        place = f"{path}: article {number}"
        paragraphs = _value(article, "paragraphs", list, "article", place)
        if not paragraphs:
            faults.add("Articles without paragraphs", place)
        for count, paragraph in enumerate(paragraphs, start=1):
            yield paragraph, f"{place}, paragraph {count}"


# ----------------------------------------------------------- what an entry has


def _id(entry: Any, where: str) -> str:
    if isinstance(entry, dict) and type(entry.get("id")) is int:
        return str(entry["id"])  # as the file of predictions will have it
    return _value(entry, "id", str, "question", where)


def _is_impossible(entry: dict[str, Any], where: str) -> bool:
    if "is_impossible" not in entry:
        return False
    return _value(entry, "is_impossible", bool, "question", where)


def _answers(
    entry: dict[str, Any], where: str, needs_start: bool
) -> Iterator[Answer]:
    if "answers" not in entry:
        return
    answers = _value(entry, "answers", list, "question", where)
    for number, answer in enumerate(answers, start=1):
        place = f"{where}, answer {number}"
        text = _value(answer, "text", str, "answer", place)
        if needs_start or "answer_start" in answer:
            start = _value(answer, "answer_start", int, "answer", place)
        else:
            start = -1
        yield Answer(text, start)


def _value(holder: Any, key: str, expected: type, what: str, where: str) -> Any:
    """What an object of JSON holds under a key.

    Args:
      holder: The object, which is `what` stands at `where`.
      key: What to look for.
      expected: The type of it; JSON's values have no others than Python's.

    Raises:
      InputError: `holder` is none, has no such key or something else there.
    """
    if not isinstance(holder, dict):
        raise InputError(
            f"Expected every {what} to be an object. Received: "
            f"{_shown(holder)} at {where}"
        )
    if key not in holder:
        raise InputError(
            f"Expected {key!r} in every {what}. Received: {_keys(holder)} at "
            f"{where}"
        )
    value = holder[key]
    if type(value) is not expected:
        raise InputError(
            f"Expected {key!r} to be {_TYPE_NAMES[expected]}. Received: "
            f"{_shown(value)} at {where}"
        )
    return value


def _keys(holder: dict[str, Any]) -> str:
    if not holder:
        return "an object without keys"
    return f"an object with the keys {_cut(', '.join(map(repr, holder)))}"


def _shown(value: Any) -> str:
    return _cut(json.dumps(value))


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


# -------------------------------------------------------- what is wrong, or odd


def _fault(question: Question, with_negative: bool) -> _Fault | None:
    """Why the question cannot be trained on, or None if it can."""
    if not question.context.strip():
        kind = "Questions with an empty context were left out"
        return _Fault(kind, "an empty context")
    if question.is_impossible:
        return None
    if not question.answers or not question.answers[0].text.strip():
        kind = "Questions without an answer were left out"
        if not with_negative:
            kind += " (those of SQuAD 2.0 need --version_2_with_negative)"
        return _Fault(kind, "no answer")
    return _misplacement(question.answers[0], question.context)


def _misplacement(answer: Answer, context: str) -> _Fault | None:
    """What is wrong with the place of an answer, if anything is."""
    start, end = answer.start, answer.start + len(answer.text)
    found = context[start:end] if start >= 0 else ""
    if found == answer.text:
        return None
    return _Fault(
        "Questions whose answer is not at its answer_start were left out",
        f"{_cut(repr(answer.text))} with answer_start {start}, where the "
        f"context has {_cut(repr(found))}",
    )


def _note_oddities(
    question: Question, needs_answers: bool, faults: Faults
) -> None:
    """Counts what is kept though it looks odd."""
    if not question.question.strip():
        faults.add("Questions with an empty text were kept", question.name)
    if not question.context.strip():
        kind = 'Questions with an empty context, to be answered with ""'
        faults.add(kind, question.name)
    has_several = len(set(question.answers)) > 1
    if needs_answers and has_several and not question.is_impossible:
        kind = "Questions with several answers, of which the first is used"
        faults.add(kind, question.name)
