"""`Question`: what SQuAD asks of a text, before any tokenization."""

import dataclasses

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
