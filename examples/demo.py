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
import time
from collections.abc import Iterator
from pydoc_data.topics import topics

import numpy as np
from absl import app, flags

from bert_tf.config import BertConfig
from bert_tf.data import pipeline
from bert_tf.data.schema import pretraining_schema

flags.DEFINE_string("folder", "demo_output", "Where everything is written.")
flags.DEFINE_integer("num_train_steps", 2000, "Steps of pre-training.")

FLAGS = flags.FLAGS
ROOT = pathlib.Path(__file__).resolve().parent.parent

VOCAB_SIZE = 2000
MAX_SEQ_LENGTH = 64
MAX_PREDICTIONS_PER_SEQ = 10
SEQUENCE = (
    f"--max_seq_length={MAX_SEQ_LENGTH}",
    f"--max_predictions_per_seq={MAX_PREDICTIONS_PER_SEQ}",
)
PARTS = ("train", "held_out")
# Every tenth section is kept from training.
HELD_OUT = 10
TEXT = (
    "--text=If the object does not define the [MASK], an exception is raised."
)

REPORT = """
What was learned, on text that was kept from training:

                    right    without a model
  masked words     {words:6.1%}    {share:5.1%}, always saying {word!r}
  next sentence    {sentences:6.1%}    50.0%, guessing

after {minutes:.1f} minutes, from no more than 250 kB of text. What to try next:

  python fill_mask.py --init_checkpoint={folder}/model/release \\
      --text="The [MASK] statement is used to define a function."
  tensorboard --logdir={folder}/model
  python create_vocab.py --help      (your own text, and so on from there)
"""

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
    print(f"\n$ python {shlex.join([script, *arguments])}", flush=True)
    command = [sys.executable, str(ROOT / script), *arguments]
    done = subprocess.run(command, check=False)
    if done.returncode:
        sys.exit(done.returncode)


def make_records(folder: pathlib.Path) -> None:
    """Learns a vocabulary and writes records of both parts of the corpus."""
    run(
        "create_vocab.py",
        f"--input_file={folder}/train.txt",
        f"--output_file={folder}/vocab.txt",
        f"--vocab_size={VOCAB_SIZE}",
    )
    for name, dupe_factor in (("train", 40), ("held_out", 5)):
        run(
            "create_pretraining_data.py",
            f"--input_file={folder}/{name}.txt",
            f"--output_file={folder}/{name}.tfrecord",
            f"--vocab_file={folder}/vocab.txt",
            f"--dupe_factor={dupe_factor}",
            *SEQUENCE,
        )


def pretrain(folder: pathlib.Path) -> dict[str, float]:
    """Trains, evaluates on the held-out part and returns its metrics."""
    steps = FLAGS.num_train_steps
    run(
        "run_pretraining.py",
        f"--input_file={folder}/train.tfrecord",
        f"--eval_input_file={folder}/held_out.tfrecord",
        f"--bert_config_file={folder}/bert_config.json",
        f"--vocab_file={folder}/vocab.txt",
        f"--output_dir={folder}/model",
        "--do_train",
        "--do_eval",
        "--train_batch_size=64",
        "--eval_batch_size=64",
        "--learning_rate=1e-3",
        f"--num_train_steps={steps}",
        f"--num_warmup_steps={steps // 10}",
        f"--eval_steps={max(steps // 5, 1)}",
        "--max_eval_steps=0",
        *SEQUENCE,
    )
    text = (folder / "model" / "eval_results.txt").read_text()
    pairs = (line.split(" = ") for line in text.splitlines())
    return {name: float(value) for name, value in pairs}


def most_frequent_word(folder: pathlib.Path) -> tuple[str, float]:
    """The word to bet on when nothing is known, and how often it is right.

    Returns:
      The most frequent masked word of the training records, and its share of
      the masked words of the held-out ones.
    """
    counts = [masked_words(folder / f"{n}.tfrecord") for n in PARTS]
    best = int(counts[0].argmax())
    vocab = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    return vocab[best], counts[1][best] / counts[1].sum()


def masked_words(path: pathlib.Path) -> np.ndarray:
    """How often each word is masked in a file of records, integers [V]."""
    schema = pretraining_schema(MAX_SEQ_LENGTH, MAX_PREDICTIONS_PER_SEQ)
    counts = np.zeros(VOCAB_SIZE, np.int64)
    for batch in pipeline.evaluation_dataset(
        [str(path)], schema, batch_size=1024
    ).as_numpy_iterator():
        is_masked = batch["masked_lm_weights"] > 0
        words = batch["masked_lm_ids"][is_masked]
        counts += np.bincount(words, minlength=VOCAB_SIZE)
    return counts


def main(argv: list[str]) -> None:
    """Runs every step and says what was learned."""
    del argv
    started = time.monotonic()
    folder = pathlib.Path(FLAGS.folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_corpus(folder)
    write_config(folder / "bert_config.json")
    make_records(folder)
    metrics = pretrain(folder)
    run("fill_mask.py", f"--init_checkpoint={folder}/model/release", TEXT)
    word, share = most_frequent_word(folder)
    print(
        REPORT.format(
            minutes=(time.monotonic() - started) / 60,
            word=word,
            share=share,
            folder=folder,
            words=metrics["masked_lm_accuracy"],
            sentences=metrics["next_sentence_accuracy"],
        )
    )


if __name__ == "__main__":
    app.run(main)
