"""BERT in a functional Keras model with a second, numeric input.

    python examples/functional_model.py

A sentence says how warm a room should be, and a number how warm it is: should
the heating be on? Neither input is enough alone. BERT encodes the words, and a
small network combines both.

Takes half a minute on two CPU cores, from random weights. Expect about 97 %
accuracy on held-out sentences, and 65 to 71 % if the words or the temperatures
are random.
"""

from bert_tf import start_tensorflow

start_tensorflow.quietly()

import keras
import numpy as np

import bert_tf

WISHES = {"cold": 5, "cool": 12, "mild": 19, "warm": 26, "hot": 33}
SENTENCES = [
    "please keep the room {}",
    "i like it {} in here",
    "make it {} for the guests",
    "the baby needs a {} room",
    "it should be {} tonight",
    "{} is what i like",
]
HELD_OUT = ["the guests like it {}", "tonight a {} room please"]
WORDS = {word for text in [*SENTENCES, *WISHES] for word in text.split()}
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *sorted(WORDS - {"{}"})]


def examples(sentences, size, seed):
    """Returns random sentences and temperatures, and their labels."""
    random = np.random.default_rng(seed)
    wishes = random.choice(list(WISHES), size)
    texts = [random.choice(sentences).format(wish) for wish in wishes]
    celsius = random.uniform(0, 38, (size, 1)).astype("float32")
    is_on = celsius[:, 0] < [WISHES[wish] for wish in wishes]
    tokenizer = bert_tf.BertTokenizer(VOCABULARY, max_seq_length=10)
    return {**tokenizer(texts), "celsius": celsius}, is_on


def build_model():
    """Builds a classifier on BERT's vector of the text and the temperature."""
    config = bert_tf.BertConfig.from_name("L-1_H-32_A-2", len(VOCABULARY))
    features = {
        name: keras.Input((10,), dtype="int32", name=name)
        for name in ("input_ids", "input_mask", "segment_ids")
    }
    celsius = keras.Input((1,), name="celsius")
    text = bert_tf.BertModel(config)(features)["pooled_output"]
    x = keras.layers.Concatenate()([text, celsius / 38])
    x = keras.layers.Dense(32, activation="relu")(x)
    is_on = keras.layers.Dense(1, activation="sigmoid")(x)
    return keras.Model({**features, "celsius": celsius}, is_on)


def main():
    """Trains, and prints the accuracy with and without each input."""
    keras.utils.set_random_seed(1)
    model = build_model()
    model.compile(
        keras.optimizers.Adam(2e-3), "binary_crossentropy", metrics=["accuracy"]
    )
    model.fit(*examples(SENTENCES, 4000, seed=1), epochs=8, verbose=2)
    inputs, is_on = examples(HELD_OUT, 500, seed=2)
    others, _ = examples(HELD_OUT, 500, seed=3)
    words = {name: others[name] for name in others if name != "celsius"}
    for name, change in {
        "words and temperature": {},
        "random words": words,
        "random temperatures": {"celsius": others["celsius"]},
    }.items():
        _, right = model.evaluate({**inputs, **change}, is_on, verbose=0)
        print(f"{name:27}{right:6.1%} accuracy")


if __name__ == "__main__":
    main()
