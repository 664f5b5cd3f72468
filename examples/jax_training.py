"""Training on Keras's JAX backend, without TensorFlow.

    python examples/jax_training.py

Restores the capital letters of lower-cased sentences: one of three labels for
every word. Only one line of the program is specific to JAX.

Takes half a minute on two CPU cores, from random weights. Expect 97.8 %
accuracy on the words of held-out sentences (baseline, all words lower-cased:
90.5 %).
"""

import collections
import importlib.util
import os
import re
import sys

if not importlib.util.find_spec("jax"):
    sys.exit("JAX is not installed. Run `pip install jax`.")
os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
from python_sentences import load

import bert_tf

FORMS = [str, str.capitalize, str.upper]
WORD = re.compile(r"\w+|[^\w\s]")
LENGTH = 40
EPOCHS = 6
BATCH_SIZE = 32
TEXT = "return the http status of the url as an int or none."


def form(word):
    """Returns the index of the form of a word."""
    if word == word.lower():
        return 0
    return 2 if word == word.upper() and len(word) > 1 else 1


def encode(texts, ids):
    """Returns the inputs of BERT, the forms and a mask; [texts, LENGTH]."""
    inputs = np.zeros((3, len(texts), LENGTH), "int32")
    for row, text in enumerate(texts):
        words = WORD.findall(text)[:LENGTH]
        inputs[0, row, : len(words)] = [ids.get(w.lower(), 1) for w in words]
        inputs[1, row, : len(words)] = [form(word) for word in words]
        inputs[2, row, : len(words)] = 1
    input_ids, forms, mask = inputs
    return {"input_ids": input_ids, "input_mask": mask}, forms, mask


def number_words(texts):
    """Returns the ids of all words that occur twice or more."""
    counts = collections.Counter(
        word for text in texts for word in WORD.findall(text.lower())
    )
    known = [word for word, count in counts.items() if count > 1]
    return {word: i for i, word in enumerate(["[PAD]", "[UNK]", *known])}


def train(texts, ids):
    """Trains a small model as in the paper: Adam, warm-up and decay."""
    config = bert_tf.BertConfig.from_name("L-1_H-64_A-4", len(ids))
    model = bert_tf.BertTokenClassifier(config, num_labels=len(FORMS))
    steps = EPOCHS * len(texts) // BATCH_SIZE
    schedule = bert_tf.WarmupLinearDecay(5e-4, steps, steps // 10)
    model.compile(
        bert_tf.AdamWeightDecay(schedule),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    inputs, forms, mask = encode(texts, ids)
    model.fit(inputs, forms, BATCH_SIZE, EPOCHS, sample_weight=mask, verbose=2)
    return model


def main():
    """Trains, prints the accuracy and restores a text."""
    keras.utils.set_random_seed(1)
    (texts, _), (held_out, _) = load()
    ids = number_words(texts)
    model = train(texts, ids)
    inputs, forms, mask = encode([*held_out, TEXT], ids)
    found = model.predict(inputs, verbose=0)["logits"].argmax(-1)
    right, as_they_are = (
        np.average(guess == forms[:-1], weights=mask[:-1])
        for guess in (found[:-1], 0)
    )
    print(f"accuracy {right:.1%}, baseline {as_they_are:.1%}")
    words = zip(found[-1], WORD.findall(TEXT), strict=False)
    print(TEXT, " ".join(FORMS[i](word) for i, word in words), sep="\n")
    print(f"(on the {keras.backend.backend()} backend)")


if __name__ == "__main__":
    main()
