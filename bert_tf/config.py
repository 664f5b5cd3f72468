"""`BertConfig`: the numbers that a BERT model is made of.

Reads and writes Google's `bert_config.json`. There "gelu" is the tanh form of
the function, while the same word in a Hugging Face `config.json` is the erf
form; a `BertConfig` therefore says "gelu_tanh" or "gelu_erf", and each reader
and writer translates. Free of TensorFlow and Keras.
"""

import dataclasses
import difflib
import json
import math
import os
import re
from collections.abc import Mapping
from typing import Any, Self

from bert_tf import files
from bert_tf.errors import InputError

ACTIVATIONS = ("gelu_tanh", "gelu_erf", "relu", "tanh", "linear")
ATTENTION_DIRECTIONS = ("bidirectional", "left_to_right")

# num_hidden_layers, hidden_size, num_attention_heads of the models that Google
# published under a name; the feed-forward layer is four times as wide.
NAMED_SIZES = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}
_NUMBER = r"([1-9]\d{0,18})"
_GRID_NAME = re.compile(f"L-{_NUMBER}_H-{_NUMBER}(?:_A-{_NUMBER})?")
# The width of a head in all of them, and in the 24 small models.
_HEAD_WIDTH = 64

# Far beyond any BERT: larger sizes are mistakes, and would be noticed only
# when the memory is full.
_MOST = {"num_hidden_layers": 1_000}
_MOST_OF_OTHERS = 10_000_000
_MOST_WEIGHTS = 100_000_000_000

# How Google's files spell an activation. "" is theirs for none at all.
_FROM_GOOGLE = {"gelu": "gelu_tanh", "": "linear"}
_TO_GOOGLE = {"gelu_tanh": "gelu"}

# Settings of a pooler that Google never released; the multilingual and the
# Chinese models carry them, and nothing reads them.
_UNUSED_KEYS = frozenset(
    {
        "directionality",
        "pooler_fc_size",
        "pooler_num_attention_heads",
        "pooler_num_fc_layers",
        "pooler_size_per_head",
        "pooler_type",
    }
)


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Configuration of a BERT model, checked when it is made.

    Attributes:
      vocab_size: Number of pieces in the vocabulary.
      hidden_size: Width of the encoder; a multiple of the heads, which is
        checked when a model is made, as in the original.
      num_hidden_layers: Number of transformer blocks.
      num_attention_heads: Attention heads of each block.
      intermediate_size: Width of the feed-forward layer.
      hidden_act: Its activation, one of `ACTIVATIONS`, or Google's name of
        one: "gelu" is stored as "gelu_tanh". Hugging Face's "gelu" is
        "gelu_erf".
      hidden_dropout_prob: Dropout of embeddings and of each block's outputs.
      attention_probs_dropout_prob: Dropout of the attention probabilities.
      max_position_embeddings: Longest sequence, in pieces.
      type_vocab_size: Number of segment ids. 16 is the default of Google's
        code, and what a JSON file without the key means; every published
        model has 2, and so has a config from `from_name`.
      initializer_range: Standard deviation of the initial weights.
      attention_direction: What a token looks at, one of
        `ATTENTION_DIRECTIONS`: all others, or those before it (the paper's
        "LTR", section 5.1). Google's code knows the former alone; the key is
        in no file of a model that has it.

    Raises:
      InputError: A value is of the wrong type or out of its range.
    """

    vocab_size: int
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu_tanh"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 16
    initializer_range: float = 0.02
    attention_direction: str = "bidirectional"

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if field.type is int:
                self._check_size(field.name)
            elif field.name.endswith("_prob"):
                self._check_probability(field.name)
        self._check_num_parameters()
        self._check_initializer_range()
        activation = _read_activation(self.hidden_act)
        object.__setattr__(self, "hidden_act", activation)
        self._check_activation()
        self._check_attention_direction()

    @property
    def is_left_to_right(self) -> bool:
        """Whether tokens look at those before them alone."""
        return self.attention_direction == "left_to_right"

    @classmethod
    def from_name(cls, name: str, vocab_size: int) -> Self:
        """Makes the config of a published size.

        Args:
          name: "tiny", "mini", "small", "medium", "base", "large", or layers,
            width and heads as in "L-4_H-256_A-4". The latter spells the rows
            of the BERT paper's Table 6, such as "L-3_H-768_A-12", and, also
            without their heads ("L-4_H-256"), which are H / 64 then, the 24
            small models (Turc et al. 2019: L 2, 4 to 12, H 128, 256, 512, 768).
          vocab_size: Number of pieces in the vocabulary.

        Raises:
          InputError: The name is unknown, or the heads do not divide the width.
        """
        layers, hidden_size, heads = _size(name)
        config = cls(
            vocab_size,
            hidden_size=hidden_size,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * hidden_size,
            type_vocab_size=2,
        )
        config.check_heads()
        return config

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Makes a config from what a `bert_config.json` holds.

        Absent keys take the defaults of Google's code.

        Raises:
          InputError: A key is unknown, `vocab_size` is missing, or a value is
            wrong.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for key in values:
            if key not in known and key not in _UNUSED_KEYS:
                raise InputError(
                    f"expected keys of a BERT config. Received: {key!r}"
                    + _hint(key, known)
                )
        if "vocab_size" not in values:
            raise InputError(
                "expected the key 'vocab_size' in a BERT config. Received: "
                f"{sorted(values)}"
            )
        config = cls(**{n: values[n] for n in known if n in values})
        config.check_heads()
        return config

    @classmethod
    def from_json_file(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a `bert_config.json`, local or of a scheme ("gs://...").

        Raises:
          InputError: The file cannot be read, is not JSON, or is not the
            config of a BERT model; the message names the file.
        """
        values = files.read_json(os.fspath(path))
        if "model_type" in values:
            raise InputError(
                f"expected Google's bert_config.json. Received: {path}, a "
                "config.json of Hugging Face; read its folder with load_config"
            )
        try:
            return cls.from_dict(values)
        except InputError as error:
            raise InputError(f"{error} (in {path})") from None

    def to_dict(self) -> dict[str, Any]:
        """The values in Google's terms; `from_dict` takes them back.

        Google's code has no erf GELU: "gelu_erf" stays as it is, which that
        code refuses rather than computes differently.
        """
        values = dataclasses.asdict(self)
        if not self.is_left_to_right:
            del values["attention_direction"]
        act = self.hidden_act
        return values | {"hidden_act": _TO_GOOGLE.get(act, act)}

    def to_json_string(self) -> str:
        """The text of a `bert_config.json`, as Google's code writes it."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"

    def num_parameters(self, with_pretraining_heads: bool = False) -> int:
        """Counts the trainable weights.

        Args:
          with_pretraining_heads: Adds the masked-LM head, whose output matrix
            is the word embedding table, and the next-sentence head to the
            encoder and the pooler.
        """
        width = self.hidden_size
        layer_norm = 2 * width
        dense = width * width + width
        tables = self.vocab_size + self.max_position_embeddings
        embeddings = (tables + self.type_vocab_size) * width + layer_norm
        attention = 4 * dense + layer_norm
        feed_forward = (2 * width + 1) * self.intermediate_size + width
        block = attention + feed_forward + layer_norm
        encoder = embeddings + self.num_hidden_layers * block + dense
        if not with_pretraining_heads:
            return encoder
        masked_lm = dense + layer_norm + self.vocab_size
        return encoder + masked_lm + 2 * width + 2

    def _check_size(self, name: str) -> None:
        value = getattr(self, name)
        if type(value) is not int or value < 1:
            raise InputError(
                f"expected a positive integer as {name}. Received: {value!r}"
            )
        most = _MOST.get(name, _MOST_OF_OTHERS)
        if value > most:
            raise InputError(f"{name} must be at most {most:,}; got {value:,}")

    def _check_num_parameters(self) -> None:
        total = self.num_parameters()
        if total > _MOST_WEIGHTS:
            raise InputError(
                f"a model must have at most {_MOST_WEIGHTS:,} weights; "
                f"vocab_size, hidden_size and the other sizes make {total:,}"
            )

    def _check_probability(self, name: str) -> None:
        value = getattr(self, name)
        if not _is_number(value) or not 0 <= value < 1:
            raise InputError(
                f"expected a number in [0, 1) as {name}. Received: {value!r}"
            )

    def _check_initializer_range(self) -> None:
        value = self.initializer_range
        if not _is_number(value) or not 0 < value < math.inf:
            raise InputError(
                "expected a positive number as initializer_range. Received: "
                f"{value!r}"
            )

    def _check_activation(self) -> None:
        if self.hidden_act in ACTIVATIONS:
            return
        raise InputError(
            f"expected one of {', '.join(ACTIVATIONS)} as hidden_act. "
            f"Received: {self.hidden_act!r}"
        )

    def check_heads(self) -> None:
        """Raises InputError if the heads do not divide the width."""
        if self.hidden_size % self.num_attention_heads:
            raise InputError(
                "expected a hidden_size that num_attention_heads divides. "
                f"Received: hidden_size={self.hidden_size}, "
                f"num_attention_heads={self.num_attention_heads}"
            )

    def _check_attention_direction(self) -> None:
        if self.attention_direction not in ATTENTION_DIRECTIONS:
            raise InputError(
                f"expected one of {', '.join(ATTENTION_DIRECTIONS)} as "
                f"attention_direction. Received: {self.attention_direction!r}"
            )


def _size(name: str) -> tuple[int, int, int]:
    """Layers, width and heads of a named size."""
    if name in NAMED_SIZES:
        return NAMED_SIZES[name]
    match = _GRID_NAME.fullmatch(name)
    if not match:
        raise InputError(
            f"expected one of {', '.join(NAMED_SIZES)}, or a name such as "
            f"L-4_H-256_A-4. Received: {name!r}{_hint(name, NAMED_SIZES)}"
        )
    layers, hidden_size = int(match[1]), int(match[2])
    if match[3]:
        return layers, hidden_size, int(match[3])
    if hidden_size % _HEAD_WIDTH:
        raise InputError(
            f"expected a width that {_HEAD_WIDTH} divides, or the heads as in "
            f"{name}_A-2. Received: {name!r}"
        )
    return layers, hidden_size, hidden_size // _HEAD_WIDTH


def _read_activation(value: Any) -> Any:
    """An activation of Google's files by our name; what is none stays."""
    if value is None:
        return "linear"
    if not isinstance(value, str):
        return value
    name = value.lower()
    return _FROM_GOOGLE.get(name, name)


def _hint(name: str, known: Any) -> str:
    nearest = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
