"""Small CoNLL files whose words determine their tags.

Some sentences are longer than a row.
"""

import itertools
import random

import sentence_files

TYPES = dict(
    zip(sentence_files.TELLING[:3], ["LOC", "ORG", "PER"], strict=True)
)
LABELS = ("O", *(f"{mark}-{kind}" for mark in "BI" for kind in TYPES.values()))
COUNTS = {"train": 12, "dev": 7, "test": 5}
MOST_WORDS = 31


def write(folder):
    """Writes train.txt, dev.txt and test.txt; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in COUNTS.items():
        path = folder / f"{split}.txt"
        path.write_text(text_of(split, count), encoding="utf-8")
    return folder


def text_of(split, count):
    """Returns sentences in IOB1, as a function of the split."""
    draw = random.Random(split)
    blocks = ["-DOCSTART- X O"]
    for number in range(count):
        words = draw.choices(
            [*TYPES, *sentence_files.FILLERS],
            weights=[7] * 3 + [1] * len(sentence_files.FILLERS),
            k=draw.randrange(1, MOST_WORDS),
        )
        words[0] = list(TYPES)[number % 3]
        pairs = itertools.pairwise(["", *words])
        rows = [f"{word} X {tag(before, word)}" for before, word in pairs]
        blocks.append("\n".join(rows))
    return "\n\n".join(blocks) + "\n"


def tag(before, word):
    """Returns the tag of a word; each word is an entity, B- after its type."""
    if word not in TYPES:
        return "O"
    return f"{'B' if before == word else 'I'}-{TYPES[word]}"
