"""Makes two tasks of SQuAD that are easier than SQuAD.

    python examples/paper/make_tasks.py \\
        --train_file=squad/train-v1.1.json --dev_file=squad/dev-v1.1.json \\
        --output_dir=tasks

writes to --output_dir:

- `QNLI/train.tsv` and `dev.tsv`: does this sentence contain the answer to this
  question? Each question comes with the sentence of its answer and with another
  sentence of the paragraph, so half of the pairs are positive. GLUE made its
  task in the same way, also without pairs that have no word in common. With
  --other_paragraphs the other sentence is the answer sentence of a question
  about another paragraph. It needs no common word, so the task is easier.
- `squad/train-v1.1.json` and `dev-v1.1.json`: questions about at most three
  sentences, the answer's sentence and its neighbours. --num_neighbors=0 leaves
  only the sentence of the answer.

--num_dev_articles keeps only the last articles of --dev_file for development
and trains on the others too. Source of QNLI: Wang et al. 2018, "GLUE", 3.3.
"""

import bisect
import dataclasses
import itertools
import json
import os
import random
import re
from collections.abc import Iterator
from typing import NamedTuple

from bert_tf import cli
from bert_tf.base import files
from bert_tf.base.options import Options, option
from bert_tf.errors import in_file, wrong_value

# The end of a sentence. Titles and initials, as in "St. Paul" and "J. Smith",
# do not end one.
_END = re.compile(
    r"(?<!\b[A-Z]\.)(?<!\b[A-Z][a-z]\.)(?<!\b(?:Mrs|Col|Gen|Rev)\.)"
    r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]?[A-Z0-9])"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TasksOfSquad(Options):
    """Options of this program."""

    train_file: str = option("SQuAD 1.1 to train on.")
    dev_file: str = option("SQuAD 1.1 to evaluate on.")
    num_dev_articles: int | None = option(
        "Number of articles at the end of --dev_file to evaluate on; its other "
        "articles are trained on. Default: all.",
        default=None,
        at_least=1,
    )
    other_paragraphs: bool = option(
        "Whether QNLI's negative sentences come from other paragraphs.",
        default=False,
    )
    num_neighbors: int = option(
        "Number of sentences before and after the answer's sentence in SQuAD.",
        default=1,
        at_least=0,
    )
    output_dir: str = option("Folder of the tasks.")


class Question(NamedTuple):
    """A question and where its paragraph has the answer.

    Attributes:
      entry: The question as in the file.
      asked: The text of the question.
      text: The paragraph.
      sentences: The start and the end of each sentence in the paragraph.
      first, last: The numbers of the sentences in which the answer starts and
        ends.
    """

    entry: dict
    asked: str
    text: str
    sentences: list[tuple[int, int]]
    first: int
    last: int

    def sentence(self, number: int) -> str:
        start, end = self.sentences[number]
        return " ".join(self.text[start:end].split())


def read_articles(path: str) -> list[list[Question]]:
    """Returns the questions of each article of a file of SQuAD 1.1."""
    articles = files.read_json(path).get("data")
    if not isinstance(articles, list):
        raise in_file(path, "this is not a file of SQuAD: it has no 'data'.")
    try:
        found = [[*questions(article)] for article in articles]
    except (AttributeError, IndexError, KeyError, TypeError):
        raise in_file(
            path,
            "this is not a file of SQuAD 1.1: a field is missing, or a "
            "question has no answer in its paragraph, as in SQuAD 2.0.",
        ) from None
    if not any(found):
        raise in_file(path, "this file has no questions.")
    return found


def questions(article: dict) -> Iterator[Question]:
    """Yields the questions of an article, by their first answer."""
    for paragraph in article["paragraphs"]:
        text = paragraph["context"]
        sentences = split_sentences(text)
        starts = [start for start, _ in sentences]
        for entry in paragraph["qas"]:
            # `shortened` needs these fields of all answers.
            answers = [(a["answer_start"], a["text"]) for a in entry["answers"]]
            start, answer = answers[0]
            end = start + len(answer) - 1
            if not 0 <= start <= end < len(text):
                raise IndexError(start)
            first, last = (bisect.bisect(starts, at) - 1 for at in (start, end))
            asked = entry["question"].strip()
            yield Question(entry, asked, text, sentences, first, last)


def split_sentences(text: str) -> list[tuple[int, int]]:
    """Returns the start and the end of each sentence."""
    starts = [0, *(found.end() for found in _END.finditer(text))]
    return list(zip(starts, [*starts[1:], len(text)], strict=True))


def pairs(
    found: Question, draw: random.Random, other: Question | None = None
) -> Iterator[tuple[str, ...]]:
    """Yields the two rows of a question in QNLI, or none.

    The negative sentence is `other`'s, if it is passed. There are no rows if
    the answer is in several sentences, if its sentence or all others of the
    paragraph have no word in common with the question, or if `other` is about
    the same paragraph.
    """
    right = found.sentence(found.first)
    if other:
        wrong = [other.sentence(other.first)] * (other.text != found.text)
    else:
        others = map(found.sentence, range(len(found.sentences)))
        wrong = [
            text
            for number, text in enumerate(others)
            if number != found.first and _words(text) & _words(found.asked)
        ]
    if found.first != found.last or not wrong:
        return
    if not _words(right) & _words(found.asked):
        return
    yield found.asked, right, "entailment"
    yield found.asked, draw.choice(wrong), "not_entailment"


def _words(text: str) -> set[str]:
    """Returns the words of four letters or more."""
    return set(re.findall(r"\w{4,}", text.lower()))


def shortened(found: Question, neighbors: int) -> dict:
    """Returns a paragraph of SQuAD with the answer and its neighbours."""
    first = max(found.first - neighbors, 0)
    last = min(found.last + neighbors, len(found.sentences) - 1)
    start, end = found.sentences[first][0], found.sentences[last][1]
    text = found.text[start:end].rstrip()
    answers = [
        {**answer, "answer_start": answer["answer_start"] - start}
        for answer in found.entry["answers"]
        if start <= answer["answer_start"]
        and answer["answer_start"] + len(answer["text"]) <= start + len(text)
    ]
    return {"context": text, "qas": [{**found.entry, "answers": answers}]}


def run(config: TasksOfSquad) -> None:
    """Writes both tasks."""
    train = read_articles(config.train_file)
    dev = read_articles(config.dev_file)
    count = config.num_dev_articles or len(dev)
    if count > len(dev):
        raise wrong_value(
            "--num_dev_articles",
            f"at most {len(dev)}, the articles of {config.dev_file}",
            count,
        )
    splits = {"train": [*train, *dev[:-count]], "dev": dev[-count:]}
    for name in ("QNLI", "squad"):
        files.makedirs(os.path.join(config.output_dir, name))
    for split, articles in splits.items():
        found = list(itertools.chain.from_iterable(articles))
        draw = random.Random(0)
        rows = [("question", "sentence", "label")]
        for one in found:
            other = draw.choice(found) if config.other_paragraphs else None
            rows += pairs(one, draw, other)
        lines = ["\t".join(("index", *rows[0]))]
        lines += [
            "\t".join((str(number), *(" ".join(cell.split()) for cell in row)))
            for number, row in enumerate(rows[1:])
        ]
        path = os.path.join(config.output_dir, "QNLI", f"{split}.tsv")
        files.write_text(path, "".join(f"{line}\n" for line in lines))
        short = [shortened(one, config.num_neighbors) for one in found]
        article = {"title": split, "paragraphs": short}
        text = json.dumps({"version": "1.1", "data": [article]})
        path = os.path.join(config.output_dir, "squad", f"{split}-v1.1.json")
        files.write_text(path, text)
        print(f"{split}: {len(found)} questions, {len(rows) - 1} pairs")


if __name__ == "__main__":
    cli.main(run)
