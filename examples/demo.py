"""From raw text to a pre-trained BERT, on Python's own documentation.

    make demo

Writes Python's documentation (`pydoc_data.topics`, some 400 kB of English) as a
corpus, learns a vocabulary, writes records, pre-trains a small model and fills
in a blank with it. Every command is printed before it runs, so that you can
rerun it with other text.

Takes about six minutes on two CPU cores. On held-out text the accuracy is 19 to
20 % for masked words (always predicting the most frequent word: 5 %) and 66 to
68 % for next sentences. The exact numbers depend on the CPU.
"""

import argparse
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pydoc_data.topics import topics

from bert_tf import start_tensorflow

start_tensorflow.quietly()

import numpy as np
import tensorflow as tf

import bert_tf

ROOT = pathlib.Path(__file__).resolve().parent.parent
# As the user would type it: .venv/bin/python.
PYTHON = min(sys.executable, os.path.relpath(sys.executable), key=len)

VOCAB_SIZE = 2000
MAX_SEQ_LENGTH = 64
MAX_PREDICTIONS_PER_SEQ = 10
SEQUENCE = (
    f"--max_seq_length={MAX_SEQ_LENGTH}",
    f"--max_predictions_per_seq={MAX_PREDICTIONS_PER_SEQ}",
)
# Every tenth section is held out.
HELD_OUT = 10
TEXT = (
    "--text=If the object does not define the [MASK], an exception is raised."
)

REPORT = """
What was learned (accuracy on held-out text):

                 accuracy    baseline
  masked words     {words:6.1%}    {word_share:5.1%} (always predicts {word!r})
  next sentence    {sentences:6.1%}    {random:5.1%} (always predicts 'random')

after {minutes:.1f} minutes, from 250 kB of text. Next steps:

  {python} fill_mask.py --init_checkpoint={folder}/model/release \\
      --text="The [MASK] statement is used to define a function."
  {python} -m tensorboard.main --logdir={folder}/model
  {python} create_vocab.py --help     (and so on, with your own text)
"""

HEADING = re.compile(r"\n(?:[^\n]+)\n([*=\-~^]{3,})\n")
SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z\"'(])")


def documents() -> Iterator[list[str]]:
    """Yields the sections of Python's documentation, as lists of sentences.

    Topics overlap. Only the first copy of a paragraph is used: otherwise some
    held-out text would be in the training set.
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
    """Returns whether a paragraph is text, not grammar or code."""
    return (
        len(paragraph.split()) > 5
        and paragraph[-1] in ".:;)"
        and "::=" not in paragraph
        and ">>>" not in paragraph
    )


def write_corpus(folder: pathlib.Path) -> None:
    """Writes train.txt and held_out.txt, with a sentence per line."""
    sections = list(documents())
    for name, part in (
        ("train", [s for i, s in enumerate(sections) if i % HELD_OUT]),
        ("held_out", sections[::HELD_OUT]),
    ):
        text = "\n\n".join("\n".join(sentences) for sentences in part)
        (folder / f"{name}.txt").write_text(text + "\n", encoding="utf-8")
        print(f"{name}.txt: {len(part)} documents, {len(text):,} characters")


def write_config(path: pathlib.Path) -> None:
    """Writes the configuration of a model that learns in minutes."""
    config = bert_tf.BertConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
        max_position_embeddings=64,
        type_vocab_size=2,
    )
    path.write_text(config.to_json_string())


def run(script: str, *arguments: str) -> None:
    """Prints and runs the command of a script."""
    print(f"\n$ {PYTHON} {shlex.join([script, *arguments])}", flush=True)
    command = [sys.executable, str(ROOT / script), *arguments]
    process = subprocess.Popen(command)
    try:
        status = process.wait()
    except KeyboardInterrupt:
        # Ctrl-C reaches the script too, which saves a checkpoint.
        sys.exit(process.wait() or 130)
    if status:
        sys.exit(status)


def make_records(folder: pathlib.Path) -> None:
    """Learns a vocabulary and writes records of both parts of the text."""
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


def pretrain(folder: pathlib.Path, steps: int) -> dict[str, float]:
    """Trains, evaluates on the held-out text and returns the metrics."""
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


def baselines(folder: pathlib.Path) -> tuple[str, float, float]:
    """Returns the accuracy of constant answers.

    Returns:
      The most frequent masked word of the training records, its share of the
      held-out masked words, and the share of held-out pairs whose second text
      is random.
    """
    train, _ = labels(folder / "train.tfrecord")
    held_out, is_random = labels(folder / "held_out.tfrecord")
    best = np.bincount(train).argmax()
    vocab = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    return vocab[best], np.mean(held_out == best), np.mean(is_random)


def labels(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns the masked words and next-sentence labels of a record file."""
    predictions = (MAX_PREDICTIONS_PER_SEQ,)
    features = {
        "masked_lm_ids": tf.io.FixedLenFeature(predictions, tf.int64),
        "masked_lm_weights": tf.io.FixedLenFeature(predictions, tf.float32),
        "next_sentence_labels": tf.io.FixedLenFeature((), tf.int64),
    }
    words, is_random = [], []
    records = tf.data.TFRecordDataset(str(path)).batch(1024)
    for batch in records.as_numpy_iterator():
        found = tf.io.parse_example(batch, features)
        is_used = found["masked_lm_weights"] > 0
        words.append(found["masked_lm_ids"][is_used])
        is_random.append(found["next_sentence_labels"])
    return np.concatenate(words), np.concatenate(is_random)


def main() -> None:
    """Runs every step and prints what was learned."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--folder", default="demo_output", help="Output folder")
    parser.add_argument(
        "--num_train_steps",
        type=int,
        default=1500,
        help="Number of steps of pre-training",
    )
    options = parser.parse_args()
    started = time.monotonic()
    folder = pathlib.Path(options.folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_corpus(folder)
        write_config(folder / "bert_config.json")
    except OSError as error:
        sys.exit(f"demo.py: error: {error}")
    make_records(folder)
    metrics = pretrain(folder, options.num_train_steps)
    run("fill_mask.py", f"--init_checkpoint={folder}/model/release", TEXT)
    word, word_share, random_share = baselines(folder)
    print(
        REPORT.format(
            minutes=(time.monotonic() - started) / 60,
            word=word,
            word_share=word_share,
            random=random_share,
            folder=shlex.quote(str(folder)),
            python=shlex.quote(PYTHON),
            words=metrics["masked_lm_accuracy"],
            sentences=metrics["next_sentence_accuracy"],
        )
    )


if __name__ == "__main__":
    main()
