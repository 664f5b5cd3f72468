"""Small models with random weights, and unusual texts. Not a test."""

import functools

import keras
import numpy as np
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.kinds.classification.graph import ServedClassifier
from bert_tf.kinds.classification.task import ClassificationTask
from bert_tf.serving.served import Served
from bert_tf.tasks.encoding import Encoding, TextEncoding

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = "abcdefghijklmnopqrstuvwxyzéσςα中文🤗한0123.,!?'\"[]#|-"
WORDS = ("the", "cat", "sat", "on", "mat", "##at")
VOCAB = (*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS), *WORDS)

# The length to which texts are truncated; the model has no more positions.
LENGTH = 23
ENCODING = TextEncoding(VOCAB, True, None, LENGTH)
# The model has room for more words than its vocabulary has.
CONFIG = BertConfig(
    vocab_size=len(VOCAB) + 3,
    hidden_size=12,
    num_hidden_layers=1,
    num_attention_heads=4,
    intermediate_size=18,
    max_position_embeddings=LENGTH,
    type_vocab_size=2,
)

# Texts as a server receives them: bytes, UTF-8 or not, too long or empty.
NASTY = (
    b"",
    b" \t\r\n",
    b"\0",
    b"\xff\xfe",
    b"The cat sat on the mat.",
    b"the cats",
    b"a",
    b"a\x80b \xc3 c",
    b"\xed\xa0\x80 the \xf4\x90\x80\x80",
    "É e\u0301 é\u0301\u0323".encode(),
    "ΑΣ ΑΣ. σας".encode(),
    "中文the文".encode(),
    "한 \u1112\u1161\u11ab".encode(),
    "🤗 🤗🤗 \U0001f469\u200d\U0001f469 cat".encode(),
    "the\u00adcat \u200bsat\u2028on\u3000mat \ufeff!".encode(),
    b"[CLS] the [SEP] cat [PAD] [UNK] ##s",
    b'{"text": "a\\u0301"} ||| \t <b>%s</b> \\',
    b"a" * 201,
    b"xyz" * 61,
    b"the cat sat on " * 307,
    ("é" * 1009).encode(),
    b"\n" * 4001 + b"mat",
)


def served_classifier(model, labels, problem, is_pair, **encoding):
    """Returns a classifier to serve; `encoding` are fields of `Encoding`."""
    fields = {"max_seq_length": LENGTH, **encoding}
    made = Encoding(VOCAB, True, None, problem=problem, labels=labels, **fields)
    task = ClassificationTask(model.config, made)
    return ServedClassifier(model, task, is_pair)


def text_of(content: bytes) -> str:
    """Returns the text that a server reads: invalid bytes are dropped."""
    return content.decode("utf-8", errors="ignore")


def random_weights(model: keras.Model, seed: int = 1) -> keras.Model:
    """Builds a model whose weights are so large that its answers differ."""
    model.build()
    generator = np.random.default_rng(seed)
    for variable in model.weights:
        # Large biases would hide the texts.
        center = 1.0 if variable.path.endswith("gamma") else 0.0
        scale = 0.1 if len(variable.shape) == 1 else 0.7
        variable.assign(generator.normal(center, scale, variable.shape))
    return model


def assert_likeliest(chosen: np.ndarray, chances: np.ndarray) -> None:
    """Checks that choices [n] are as likely as the best of floats [n, C].

    The last digits of a model's outputs depend on the processor and the batch,
    and decide between two choices that are almost equally likely.
    """
    of_chosen = np.take_along_axis(chances, chosen[:, np.newaxis], axis=1)
    np.testing.assert_allclose(of_chosen[:, 0], chances.max(axis=1), atol=1e-3)


def answer(served: Served, texts: dict[str, list]) -> dict[str, np.ndarray]:
    """Returns the outputs of `serving_default`, traced for any shape."""
    return _run(_signature(served.answer), served.inputs, texts)


def answer_tokens(served: Served, features: dict) -> dict[str, np.ndarray]:
    """Returns the outputs of `tokens`."""
    inputs = served.token_inputs
    return _run(_signature(served.answer_tokens, True), inputs, features)


def tokenize(served: Served, texts: dict[str, list]) -> dict[str, np.ndarray]:
    """Returns the outputs of `tokenize`."""
    return _run(_signature(served.tokenize), served.inputs, texts)


@functools.cache
def _signature(method, takes_tokens: bool = False):
    """A method of `Served` as a graph."""
    served = method.__self__
    specs = served.token_inputs if takes_tokens else served.inputs
    return tf.function(method, input_signature=[specs])


def _run(function, specs: dict[str, tf.TensorSpec], values: dict) -> dict:
    asked = {
        name: tf.constant(values[name], spec.dtype)
        for name, spec in specs.items()
    }
    return {name: value.numpy() for name, value in function(asked).items()}
