"""From raw text to a pre-trained BERT, on what every Python carries.

    make demo

Writes the documentation inside Python (`pydoc_data.topics`, some 400 kB of
English) as a corpus, learns a vocabulary, writes records, pre-trains a small
model and fills a blank with it. Every command is printed before it runs, so
that it can be repeated by hand with other text.

Takes about MINUTES minutes on two CPU cores. Expect a masked-word accuracy on
held-out text of about NN %, where the most frequent word has N %, and a
next-sentence accuracy of about NN %, where guessing has 50 %.
"""

import pathlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pydoc_data.topics import topics

from absl import flags

from bert_tf.config import BertConfig

flags.DEFINE_string("folder", "demo_output", "Where everything is written.")
flags.DEFINE_integer("num_train_steps", 2000, "Steps of pre-training.")

FLAGS = flags.FLAGS
ROOT = pathlib.Path(__file__).resolve().parent.parent

VOCAB_SIZE = 4000
SEQUENCE = ["--max_seq_length=64", "--max_predictions_per_seq=10"]
# Every tenth section is kept from training.
HELD_OUT = 10

HEADING = re.compile(r"\n(?:[^\n]+)\n([*=\-~^]{3,})\n")
SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z\"'(])")


def documents() -> Iterator[list[str]]:
    """The sections of Python's documentation, as lists of sentences.

    Topics overlap; a paragraph is taken where it comes first only, or
    held-out text would have been seen in training.
    """
    seen = set()
    for _, text in sorted(topics.items()):
        for section in HEADING.split("\n" + text)[::2]:
            sentences = []
            for paragraph in re.split(r"\n\s*\n", section):
                words = " ".join(paragraph.split())
                if is_prose(words) and words not in seen:
                    seen.add(words)
                    sentences += SENTENCE_END.split(words)
            if len(sentences) > 1:
                yield sentences


def is_prose(paragraph: str) -> bool:
    """Whether a paragraph is text, not grammar or code."""
    return (
        len(paragraph.split()) > 5
        and paragraph[-1] in ".:;)"
        and "::=" not in paragraph
        and ">>>" not in paragraph
    )


def write_corpus(folder: pathlib.Path) -> None:
    """Writes train.txt and held_out.txt: a sentence a line, a blank line
    between documents."""
    sections = list(documents())
    for name, part in (
        ("train", [s for i, s in enumerate(sections) if i % HELD_OUT]),
        ("held_out", sections[::HELD_OUT]),
    ):
        text = "\n\n".join("\n".join(sentences) for sentences in part)
        (folder / f"{name}.txt").write_text(text + "\n", encoding="utf-8")
        print(f"{name}.txt: {len(part)} documents, {len(text):,} characters")


def write_config(path: pathlib.Path) -> None:
    """Writes the shape of a model that learns something in minutes."""
    config = BertConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        max_position_embeddings=64,
        type_vocab_size=2,
    )
    path.write_text(config.to_json_string())


def run(script: str, *arguments: str) -> None:
    """Runs one of the project's scripts and shows the command first."""
    command = [sys.executable, str(ROOT / script), *arguments]
    print(f"\n$ python {shlex.join([script, *arguments])}", flush=True)
    subprocess.run(command, check=True)
