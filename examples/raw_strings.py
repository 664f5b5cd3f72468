"""A model from strings to classes that contains the tokenizer.

    python examples/raw_strings.py
    python examples/raw_strings.py "Send the message to the server."

Learns the subject of sentences of Python's documentation (numbers, files,
networks, processes), saves the model as one `.keras` file, loads it and
classifies your sentences. The input is plain strings.

Takes half a minute on two CPU cores, from random weights. Expect 83 % accuracy
on held-out sentences; always answering "processes" has 37 %.
"""

import bert_tf.quiet_tensorflow  # isort: skip

import pathlib
import sys
import tempfile

import keras
import numpy as np
import tensorflow as tf
from python_sentences import SUBJECTS, load

import bert_tf
from bert_tf.tokenization.normalization import Normalizer
from bert_tf.tokenization.vocabulary import count_words, learn_vocabulary

EPOCHS = 8
BATCH_SIZE = 32
QUESTIONS = sys.argv[1:] or [
    "Round to the nearest integer.",
    "Remove the directory and everything in it.",
    "Wait until every worker has finished.",
]


def build_model(texts):
    """Learns a vocabulary from `texts` and builds a classifier on it."""
    words = count_words(texts, Normalizer(do_lower_case=True))
    vocabulary = learn_vocabulary(words, vocab_size=2000)
    config = bert_tf.BertConfig.from_name("L-1_H-64_A-4", len(vocabulary))
    text = keras.Input((), dtype="string", name="text")
    features = bert_tf.BertTokenizer(vocabulary, max_seq_length=48)(text)
    outputs = bert_tf.BertClassifier(config, len(SUBJECTS))(features)
    return keras.Model(text, outputs)


def compile_model(model, num_examples):
    """As the paper trains: Adam, warm-up and linear decay."""
    steps = EPOCHS * num_examples // BATCH_SIZE
    schedule = bert_tf.WarmupLinearDecay(5e-4, steps, steps // 10)
    model.compile(
        bert_tf.AdamWeightDecay(schedule),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )


def main():
    """Trains, saves, loads and answers."""
    keras.utils.set_random_seed(1)
    (texts, subjects), (held_out, expected) = load()
    model = build_model(texts)
    compile_model(model, len(texts))
    data = tf.data.Dataset.from_tensor_slices((texts, subjects))
    data = data.shuffle(len(texts)).batch(BATCH_SIZE)
    model.fit(data, epochs=EPOCHS, verbose=2)
    _, right = model.evaluate(
        tf.constant(held_out), np.array(expected), verbose=0
    )
    frequent = np.bincount(expected).argmax()
    share = np.mean(np.array(expected) == frequent)
    print(f"{right:.1%} right (always {SUBJECTS[frequent]!r}: {share:.1%})")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "subjects.keras"
        model.save(path)
        loaded = keras.models.load_model(path)
    logits = loaded.predict(tf.constant(QUESTIONS), verbose=0)["logits"]
    for question, best in zip(QUESTIONS, logits.argmax(-1), strict=True):
        print(f"{SUBJECTS[best]:10} {question}")


if __name__ == "__main__":
    main()
