"""Hugging Face's names of the weights of BERT, and the weights of each model.

The table has a paragraph for each part of the model, and two for the encoder.
The first row of a paragraph names the part, the second row has the scopes. Each
other row has a weight: this project's name (Google's), Hugging Face's name, and
this project's shape. N is the number of the layer; the sizes are

    V  vocabulary        P  positions           H  hidden size
    C  classes           T  token types         I  intermediate size

Kernels are transposed: Hugging Face's are [out, in], this project's [in, out].
"""

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from bert_tf.config import BertConfig

_TABLE = """
encoder
bert/embeddings/                    bert.embeddings.
word_embeddings                     word_embeddings.weight               V,H
position_embeddings                 position_embeddings.weight           P,H
token_type_embeddings               token_type_embeddings.weight         T,H
LayerNorm/gamma                     LayerNorm.weight                     H
LayerNorm/beta                      LayerNorm.bias                       H

encoder
bert/encoder/layer_N/               bert.encoder.layer.N.
attention/self/query/kernel         attention.self.query.weight          H,H
attention/self/query/bias           attention.self.query.bias            H
attention/self/key/kernel           attention.self.key.weight            H,H
attention/self/key/bias             attention.self.key.bias              H
attention/self/value/kernel         attention.self.value.weight          H,H
attention/self/value/bias           attention.self.value.bias            H
attention/output/dense/kernel       attention.output.dense.weight        H,H
attention/output/dense/bias         attention.output.dense.bias          H
attention/output/LayerNorm/gamma    attention.output.LayerNorm.weight    H
attention/output/LayerNorm/beta     attention.output.LayerNorm.bias      H
intermediate/dense/kernel           intermediate.dense.weight            H,I
intermediate/dense/bias             intermediate.dense.bias              I
output/dense/kernel                 output.dense.weight                  I,H
output/dense/bias                   output.dense.bias                    H
output/LayerNorm/gamma              output.LayerNorm.weight              H
output/LayerNorm/beta               output.LayerNorm.bias                H

pooler
bert/pooler/                        bert.pooler.
dense/kernel                        dense.weight                         H,H
dense/bias                          dense.bias                           H

masked_lm
cls/predictions/                    cls.predictions.
transform/dense/kernel              transform.dense.weight               H,H
transform/dense/bias                transform.dense.bias                 H
transform/LayerNorm/gamma           transform.LayerNorm.weight           H
transform/LayerNorm/beta            transform.LayerNorm.bias             H
output_bias                         bias                                 V

next_sentence
cls/seq_relationship/               cls.seq_relationship.
output_weights                      weight                               2,H
output_bias                         bias                                 2

classes
/                                   classifier.
output_weights                      weight                               C,H
output_bias                         bias                                 C

span
cls/squad/                          qa_outputs.
output_weights                      weight                               2,H
output_bias                         bias                                 2
"""


class Head(NamedTuple):
    """What a model computes, and its weights besides the encoder's.

    Attributes:
      model: The name of this project's class.
      architecture: The name of transformers' class.
      parts: The parts of the model, as in the table above. Taggers and span
        models use every position and have no pooler.
      pipeline: The task on Hugging Face's Hub, if there is one.
      has_labels: Whether its classes have names.
    """

    model: str
    architecture: str
    parts: tuple[str, ...]
    pipeline: str | None = None
    has_labels: bool = False


# All formats know these heads. A model class has the name of its head as its
# attribute `head_name`.
HEADS = {
    "encoder": Head(
        "BertModel",
        "BertModel",
        ("encoder", "pooler"),
        "feature-extraction",
    ),
    "pretraining": Head(
        "BertPretrainer",
        "BertForPreTraining",
        ("encoder", "pooler", "masked_lm", "next_sentence"),
        "fill-mask",
    ),
    "masked_lm": Head(
        "BertPretrainer",
        "BertForMaskedLM",
        ("encoder", "masked_lm"),
        "fill-mask",
    ),
    "next_sentence": Head(
        "BertPretrainer",
        "BertForNextSentencePrediction",
        ("encoder", "pooler", "next_sentence"),
    ),
    "classifier": Head(
        "BertClassifier",
        "BertForSequenceClassification",
        ("encoder", "pooler", "classes"),
        "text-classification",
        has_labels=True,
    ),
    "choice": Head(
        "BertMultipleChoice",
        "BertForMultipleChoice",
        ("encoder", "pooler", "classes"),
        "multiple-choice",
    ),
    "token": Head(
        "BertTokenClassifier",
        "BertForTokenClassification",
        ("encoder", "classes"),
        "token-classification",
        has_labels=True,
    ),
    "span": Head(
        "BertSpanLabeler",
        "BertForQuestionAnswering",
        ("encoder", "span"),
        "question-answering",
    ),
}

# Constants that some versions store; nothing reads them.
BUFFERS = frozenset(
    {"bert.embeddings.position_ids", "bert.embeddings.token_type_ids"}
)

# The output matrix of masked LM, which here is always the embedding matrix.
DECODER = "cls.predictions.decoder.weight"

# Other spellings of names, and the names of copies of weights.
_RENAMED = (
    (re.compile(r"^(?=(embeddings|encoder|pooler)\.)"), "bert."),
    (re.compile(r"(?<=LayerNorm\.)gamma$"), "weight"),
    (re.compile(r"(?<=LayerNorm\.)beta$"), "bias"),
)
_COPIES = {
    DECODER: "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}


class WeightName(NamedTuple):
    """One weight.

    Attributes:
      part: The part of the model.
      ours: The TF1 name.
      theirs: The name in a Hugging Face model with a head.
      shape: This project's shape; 0 means any number of classes.
    """

    part: str
    ours: str
    theirs: str
    shape: tuple[int, ...]

    @property
    def is_transposed(self) -> bool:
        return self.ours.endswith("/kernel")

    def their_name(self, head: str) -> str:
        """Returns the name in transformers' class for a head.

        The names in `BertModel` have no scope `bert`.
        """
        return self.theirs.removeprefix("bert." if head == "encoder" else "")

    def turned_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Converts a shape from or to Hugging Face's."""
        return tuple(shape[::-1] if self.is_transposed else shape)

    def turned(self, value: np.ndarray) -> np.ndarray:
        """Converts a value from or to Hugging Face's."""
        return np.ascontiguousarray(value.T) if self.is_transposed else value


def rows(config: BertConfig) -> tuple[WeightName, ...]:
    """Returns all weights that a model of this size can have, with any head."""
    sizes = {
        "V": config.vocab_size,
        "P": config.max_position_embeddings,
        "T": config.type_vocab_size,
        "H": config.hidden_size,
        "I": config.intermediate_size,
        "C": 0,
        "2": 2,
    }
    names = []
    for paragraph in _TABLE.strip().split("\n\n"):
        part, scopes, *lines = paragraph.splitlines()
        our_scope, their_scope = scopes.split()
        for n in range(config.num_hidden_layers if "N" in our_scope else 1):
            for line in lines:
                ours, theirs, letters = line.split()
                ours = our_scope.replace("N", str(n)).lstrip("/") + ours
                theirs = their_scope.replace("N", str(n)) + theirs
                shape = tuple(sizes[letter] for letter in letters.split(","))
                names.append(WeightName(part, ours, theirs, shape))
    return tuple(names)


def canonical(name: str) -> str:
    """Returns the name in the table for any spelling of it."""
    for pattern, replacement in _RENAMED:
        name = pattern.sub(replacement, name)
    return _COPIES.get(name, name)


def head_of_parts(parts: Collection[str]) -> str | None:
    """Returns the head that the parts of a model determine, or None."""
    shared = {"encoder", "pooler"}
    heads = [h for h, x in HEADS.items() if {*x.parts} ^ {*parts} <= shared]
    if len(heads) > 1 and "pooler" not in parts:
        # Only without a pooler: with one, all three heads with classes fit.
        heads = [h for h in heads if "pooler" not in HEADS[h].parts]
    return heads[0] if len(heads) == 1 else None
