"""Scores of entities in tagged sentences, equal to those of conlleval.

An entity is right if its type and both its borders are. Source: conlleval.pl,
the script of the CoNLL shared tasks of 2000 to 2003.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bert_tf.errors import InputError

_TAG = re.compile("O|([BI])(?:-(.+))?", re.DOTALL)


class Entity(NamedTuple):
    """Words that are something together.

    Attributes:
      type: What they are; "" where the tags have no types.
      start: The first word, from 0.
      end: The word behind the last one.
    """

    type: str
    start: int
    end: int


class Counts(NamedTuple):
    """How many entities there are, were predicted, and are among both."""

    gold: int
    predicted: int
    correct: int

    @property
    def precision(self) -> float:
        """Share of the predicted ones that are right; 0 of none."""
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """Share of those there are that were predicted; 0 of none."""
        return self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of the two; 0 where both are."""
        total = self.gold + self.predicted
        return 2 * self.correct / total if total else 0.0


def entities(tags: Iterable[str]) -> list[Entity]:
    """The entities of a sentence, in order.

    B begins one wherever it stands. I goes on with the one before it if that
    is of the same type; else, behind O or another type, it begins one.

    Args:
      tags: "O"; "B" or "I", with "-" and a type or without.

    Raises:
      ValueError: A tag is another.
    """
    found: list[Entity] = []
    is_open = False
    for word, tag in enumerate(tags):
        match = _TAG.fullmatch(tag)
        if not match:
            raise ValueError(f"Expected O, B-TYPE or I-TYPE. Received: {tag!r}")
        mark, kind = match[1], match[2] or ""
        if mark == "I" and is_open and found[-1].type == kind:
            found[-1] = found[-1]._replace(end=word + 1)
        elif mark:
            found.append(Entity(kind, word, word + 1))
        is_open = mark is not None
    return found


def count(
    gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]
) -> tuple[Counts, dict[str, Counts]]:
    """Counts the entities, all of them and those of each type.

    Args:
      gold: The tags of each sentence.
      predicted: Those that were predicted, as many.
    """
    found: tuple[Counter[str], ...] = Counter(), Counter(), Counter()
    for right, answered in zip(gold, predicted, strict=True):
        wanted, given = set(entities(right)), set(entities(answered))
        members = wanted, given, wanted & given
        for counter, these in zip(found, members, strict=True):
            counter.update(entity.type for entity in these)
    of_types = {
        kind: Counts(*(counter[kind] for counter in found))
        for kind in sorted(found[0] | found[1])
    }
    return Counts(*(counter.total() for counter in found)), of_types


def score(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Scores predicted tags.

    Args:
      gold: The tags of each sentence.
      predicted: Those that were predicted, as many.

    Returns:
      `precision`, `recall` and `f1` of all entities; `accuracy`, the share of
      the words whose tag is right; then `PER_precision` ... of each type. From
      0 to 1, where conlleval prints percent. To its accuracy the lines of
      -DOCSTART- are words, too.

    Raises:
      InputError: There is no word.
    """
    num_words = sum(map(len, gold))
    if not num_words:
        raise InputError("expected at least one word. Received: none")
    overall, of_types = count(gold, predicted)
    num_right = sum(
        tag == answered
        for sentence, answers in zip(gold, predicted, strict=True)
        for tag, answered in zip(sentence, answers, strict=True)
    )
    metrics = _measures(overall) | {"accuracy": num_right / num_words}
    for kind, counts in of_types.items():
        if kind:
            metrics |= _measures(counts, f"{kind}_")
    return metrics


def _measures(counts: Counts, prefix: str = "") -> dict[str, float]:
    names = ("precision", "recall", "f1")
    return {f"{prefix}{name}": getattr(counts, name) for name in names}
