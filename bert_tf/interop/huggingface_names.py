"""What Hugging Face calls the weights of BERT, and which each model has.

The table has a part of the model to a paragraph. Its first row holds the
scopes of the part, every other row one weight: our name (Google's), theirs,
and our shape. N counts the layers; the sizes are

    V  vocabulary        P  positions           H  hidden size
    C  classes           T  token types         I  intermediate size

Theirs are matrices [out, in] that multiply from the left, ours that are
called `kernel` are [in, out]: these are transposed.
"""

import re
from collections.abc import Collection, Iterator, Sequence
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

# The parts of each kind of model. A tagger and a reader of passages look at
# every position and have no pooler.
PARTS_OF_HEAD = {
    "encoder": ("encoder", "pooler"),
    "pretraining": ("encoder", "pooler", "masked_lm", "next_sentence"),
    "masked_lm": ("encoder", "masked_lm"),
    "next_sentence": ("encoder", "pooler", "next_sentence"),
    "classifier": ("encoder", "pooler", "classes"),
    "choice": ("encoder", "pooler", "classes"),
    "token": ("encoder", "classes"),
    "span": ("encoder", "span"),
}

# Counters that some versions store beside the weights; nothing reads them.
BUFFERS = frozenset(
    {"bert.embeddings.position_ids", "bert.embeddings.token_type_ids"}
)

# The matrix of masked LM, which is that of the embeddings here.
DECODER = "cls.predictions.decoder.weight"

# Older spellings, and the matrix that masked LM shares with the embeddings.
_RENAMED = (
    (re.compile(r"^(?=(embeddings|encoder|pooler)\.)"), "bert."),
    (re.compile(r"(?<=LayerNorm\.)gamma$"), "weight"),
    (re.compile(r"(?<=LayerNorm\.)beta$"), "bias"),
    (
        re.compile(r"^cls\.predictions\.decoder\.weight$"),
        "bert.embeddings.word_embeddings.weight",
    ),
    (re.compile(r"^cls\.predictions\.decoder\.bias$"), "cls.predictions.bias"),
)


class Row(NamedTuple):
    """One weight.

    Attributes:
      part: The part of the model that it belongs to.
      ours: Its TF1 name.
      theirs: Its name in a Hugging Face model that has a head.
      shape: Its shape by our name; 0 stands for any number of classes.
    """

    part: str
    ours: str
    theirs: str
    shape: tuple[int, ...]

    @property
    def is_transposed(self) -> bool:
        return self.ours.endswith("/kernel")

    def fits(self, shape: Sequence[int]) -> bool:
        """True if a weight of this shape, by our name, can be this one."""
        return len(shape) == len(self.shape) and all(
            size == expected if expected else size > 0
            for size, expected in zip(shape, self.shape, strict=True)
        )

    def their_name(self, head: str) -> str:
        """Its name in the class for a head: BertModel has no scope `bert`."""
        return self.theirs.removeprefix("bert." if head == "encoder" else "")

    def turned_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Makes their shape of ours, or ours of theirs."""
        return tuple(shape[::-1] if self.is_transposed else shape)

    def turned(self, value: np.ndarray) -> np.ndarray:
        """Makes theirs of ours, or ours of theirs."""
        return np.ascontiguousarray(value.T) if self.is_transposed else value


def rows(config: BertConfig) -> tuple[Row, ...]:
    """The weights that a model of this size can have, of any head."""
    sizes = {
        "V": config.vocab_size,
        "P": config.max_position_embeddings,
        "T": config.type_vocab_size,
        "H": config.hidden_size,
        "I": config.intermediate_size,
        "C": 0,
        "2": 2,
    }
    return tuple(
        Row(part, ours, theirs, tuple(sizes[letter] for letter in letters))
        for part, ours, theirs, letters in _expand(config.num_hidden_layers)
    )


def _expand(layers: int) -> Iterator[tuple[str, str, str, list[str]]]:
    """The rows of the table with whole names, those with an N many times."""
    for paragraph in _TABLE.strip().split("\n\n"):
        part, scopes, *lines = paragraph.splitlines()
        our_scope, their_scope = scopes.split()
        repeated = range(layers if "N" in our_scope else 1)
        for n in repeated:
            for line in lines:
                ours, theirs, letters = line.split()
                yield (
                    part,
                    our_scope.replace("N", str(n)).lstrip("/") + ours,
                    their_scope.replace("N", str(n)) + theirs,
                    letters.split(","),
                )


def canonical(name: str) -> str:
    """The name in the table of a tensor, however the file spells it."""
    for pattern, replacement in _RENAMED:
        name = pattern.sub(replacement, name)
    return name


def head_of_parts(parts: Collection[str]) -> str | None:
    """The kind of head that the parts of a model tell by themselves."""
    heads = {*parts} - {"encoder", "pooler"}
    if heads == {"classes"}:
        # With a pooler it can be a classifier, a choice, or an old tagger.
        return None if "pooler" in parts else "token"
    if heads == {"masked_lm", "next_sentence"}:
        return "pretraining"
    if len(heads) > 1:
        return None
    return heads.pop() if heads else "encoder"
