"""A model from strings to classes in one file.

    python examples/raw_strings.py
    python examples/raw_strings.py "Send the message to the server."

Learns the subject of sentences of Python's documentation (numbers, files,
networks, processes). Saves the model, with its tokenizer and the names of the
classes, as one `.keras` file, then loads it and classifies your sentences.

Takes half a minute on two CPU cores, from random weights. Expect 82 % accuracy
on held-out sentences (baseline, always "processes": 37 %).
"""

from bert_tf import start_tensorflow

start_tensorflow.quietly()

import pathlib
import sys
import tempfile

import keras
import numpy as np
from python_sentences import SUBJECTS, learn_vocabulary, load

import bert_tf

QUESTIONS = sys.argv[1:] or [
    "Round to the nearest integer.",
    "Remove the directory and everything in it.",
    "Wait until every worker has finished.",
]


def build_model(texts):
    """Learns a vocabulary from `texts` and builds a small classifier."""
    vocabulary = learn_vocabulary(texts)
    config = bert_tf.BertConfig.from_name("L-1_H-64_A-4", len(vocabulary))
    return bert_tf.TextClassifier(
        bert_tf.BertClassifier(config, len(SUBJECTS)),
        bert_tf.FullTokenizer(vocabulary),
        labels=SUBJECTS,
        max_seq_length=48,
    )


def main():
    """Trains, saves, loads and answers."""
    keras.utils.set_random_seed(1)
    (texts, subjects), (held_out, expected) = load()
    model = build_model(texts)
    model.compile(learning_rate=5e-4)
    model.fit(texts, subjects, batch_size=32, epochs=8, verbose=2)
    right = model.evaluate(held_out, expected, verbose=0)["accuracy"]
    counts = np.bincount(expected)
    frequent, share = SUBJECTS[counts.argmax()], counts.max() / len(expected)
    print(f"accuracy {right:.1%} (always {frequent!r}: {share:.1%})")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "subjects.keras"
        model.save(path)
        loaded = bert_tf.load_model(path)
    for question, answer in zip(
        QUESTIONS, loaded.predict(QUESTIONS), strict=True
    ):
        print(f"{answer['label']:10} {question}")


if __name__ == "__main__":
    main()
