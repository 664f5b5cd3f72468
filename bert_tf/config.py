"""`BertConfig`: the hyperparameters of a BERT model.

Reads and writes Google's `bert_config.json`. In it, "gelu" means the tanh form
of the function; in a Hugging Face `config.json` it means the erf form. A
`BertConfig` therefore has "gelu_tanh" or "gelu_erf", and each reader and writer
translates.
"""

import dataclasses
import json
import numbers
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Self

from bert_tf.base import files
from bert_tf.errors import (
    InputError,
    did_you_mean,
    in_file,
    listed,
    require_choice,
    wrong_value,
)

ACTIVATIONS = ("gelu_tanh", "gelu_erf", "relu", "tanh", "linear")
# The vector of a text: the vector of [CLS], or the mean or maximum over tokens.
TOKEN_POOLINGS = ("cls", "mean", "max")

ATTENTION_DIRECTIONS = ("bidirectional", "left_to_right")

# The largest float32.
_LARGEST = 3.4028234663852886e38

# Layers and width of Google's named models.
NAMED_SIZES = {
    "tiny": "L-2_H-128",
    "mini": "L-4_H-256",
    "small": "L-4_H-512",
    "medium": "L-8_H-512",
    "base": "L-12_H-768",
    "large": "L-24_H-1024",
}
_NUMBER = r"([1-9]\d{0,18})"
_GRID_NAME = re.compile(f"L-{_NUMBER}_H-{_NUMBER}(?:_A-{_NUMBER})?")
# The width of a head in all of Google's published models.
_HEAD_WIDTH = 64

# Far above any BERT, so that a typo is an error before memory runs out.
MAX_SIZE = 10_000_000

# Google's names of activations in files; "" means no activation.
_FROM_GOOGLE = {"gelu": "gelu_tanh", "": "linear"}
_TO_GOOGLE = {"gelu_tanh": "gelu"}

# Settings of the multilingual and Chinese models that no released code reads.
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
    """Configuration of a BERT model, with checked values.

    Attributes:
      vocab_size: Number of tokens in the vocabulary.
      hidden_size: Width of the encoder, a multiple of num_attention_heads. The
        constructor does not check this; `from_dict` and the models do.
      num_hidden_layers: Number of transformer blocks.
      num_attention_heads: Attention heads of each block.
      intermediate_size: Width of the feed-forward layer.
      hidden_act: The activation of the feed-forward layers and the masked-LM
        head: one of `ACTIVATIONS`, or Google's name. Google's "gelu" is stored
        as "gelu_tanh"; Hugging Face's "gelu" is "gelu_erf".
      hidden_dropout_prob: Dropout rate of the embeddings and of the outputs of
        the attention and feed-forward layers.
      attention_probs_dropout_prob: Dropout rate of attention probabilities.
      max_position_embeddings: Maximum sequence length in tokens.
      type_vocab_size: Number of segment ids: 16 by default, as in Google's
        code, but 2 in every published model and in `from_name`.
      initializer_range: Standard deviation of the initial weights.
      attention_direction: One of `ATTENTION_DIRECTIONS`: whether a token
        attends to all tokens, or only to itself and those before it (the
        paper's "LTR", section 5.1). Only "left_to_right" is written to files,
        since Google's code does not have the key.

    Raises:
      InputError: If a value has the wrong type or is out of range.
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
            name, value = field.name, getattr(self, field.name)
            if field.type is int:
                size = positive_integer(name, value, MAX_SIZE)
                object.__setattr__(self, name, size)
            elif name.endswith("_prob"):
                require_share(name, value)
        require_positive("initializer_range", self.initializer_range)
        act = "" if self.hidden_act is None else self.hidden_act
        if isinstance(act, str):
            act = _FROM_GOOGLE.get(act.lower(), act.lower())
            object.__setattr__(self, "hidden_act", act)
        require_choice("hidden_act", act, ACTIVATIONS)
        direction = self.attention_direction
        require_choice("attention_direction", direction, ATTENTION_DIRECTIONS)

    @property
    def is_left_to_right(self) -> bool:
        """Whether tokens attend only to themselves and those before them."""
        return self.attention_direction == "left_to_right"

    @classmethod
    def from_name(cls, name: str, vocab_size: int) -> Self:
        """Returns the config of a published size.

        Args:
          name: "tiny", "mini", "small", "medium", "base", "large", or layers,
            width and heads as in "L-4_H-256_A-4", for example the rows of
            table 6 of the BERT paper. Without heads, as in "L-4_H-256", there
            are H / 64 of them, as in the 24 small models of Turc et al. 2019.
          vocab_size: Number of tokens in the vocabulary.

        Raises:
          InputError: If the name is unknown, or the width is not a multiple of
            the heads.
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
        """Returns a config from the values of a `bert_config.json`.

        Missing keys have the defaults of Google's code.

        Raises:
          InputError: If a key is unknown, `vocab_size` is missing, or a value
            is wrong.
        """
        field_names = [field.name for field in dataclasses.fields(cls)]
        for key in values:
            if key not in field_names and key not in _UNUSED_KEYS:
                raise InputError(
                    f"{key!r} is not a key of a BERT config."
                    f"{did_you_mean(key, field_names)}"
                )
        if "vocab_size" not in values:
            raise InputError("A BERT config needs the key 'vocab_size'.")
        config = cls(**{n: values[n] for n in field_names if n in values})
        config.check_heads()
        return config

    @classmethod
    def from_json_file(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a `bert_config.json`, local or remote ("gs://...").

        Raises:
          InputError: If the file cannot be read, is not JSON, or is not the
            config of a BERT model. The message names the file.
        """
        values = files.read_json(files.path_text(path))
        if "model_type" in values:
            raise in_file(
                path,
                "This is a config.json of Hugging Face, not Google's "
                "bert_config.json. Read its folder with load_config.",
            )
        try:
            return cls.from_dict(values)
        except InputError as error:
            raise in_file(path, str(error)) from None

    def to_dict(self) -> dict[str, Any]:
        """Returns the values with Google's names, for `from_dict`.

        Google's code has no erf GELU. "gelu_erf" is kept, so that Google's code
        raises an error instead of computing something else.
        """
        values = dataclasses.asdict(self)
        if not self.is_left_to_right:
            del values["attention_direction"]
        act = self.hidden_act
        return values | {"hidden_act": _TO_GOOGLE.get(act, act)}

    def to_json_string(self) -> str:
        """Returns the text of a `bert_config.json`, as Google's code does."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"

    def num_parameters(self, with_pretraining_heads: bool = False) -> int:
        """Returns the number of trainable weights of encoder and pooler.

        Optionally adds the pre-training heads. The word embeddings, which are
        also the masked-LM head's output matrix, count once.
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

    def check_heads(self) -> None:
        """Raises InputError if hidden_size is not a multiple of the heads."""
        if self.hidden_size % self.num_attention_heads:
            raise InputError(
                "hidden_size must be a multiple of num_attention_heads; got "
                f"hidden_size={self.hidden_size}, "
                f"num_attention_heads={self.num_attention_heads}."
            )


def positive_integer(name: str, value: Any, most: int | None = None) -> int:
    """Returns a size as an `int`: JSON cannot represent NumPy's integers.

    Raises:
      InputError: If `value` is not a positive integer, or above `most`.
    """
    is_integer = isinstance(value, numbers.Integral)
    if not is_integer or isinstance(value, bool) or value < 1:
        raise wrong_value(name, "a positive integer", value)
    if most is not None and value > most:
        raise wrong_value(name, f"at most {most:,}", value)
    return int(value)


def is_number(value: Any) -> bool:
    """Returns whether a value is a number that is finite in float32."""
    is_real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return is_real and abs(value) <= _LARGEST


def is_positive(value: Any) -> bool:
    """Returns whether a value is positive, and its square finite in float32."""
    return is_number(value) and value > 0 and is_number(value * value)


def require_number(
    name: str,
    value: Any,
    requirement: str = "a number of at least 0",
    is_allowed: Callable[[float], bool] = lambda number: number >= 0,
) -> None:
    """Raises InputError unless `value` is a finite number that is allowed.

    Args:
      name: The name of the argument.
      value: The value.
      requirement: What the value must be.
      is_allowed: Returns whether a finite number meets the requirement.
    """
    if not (is_number(value) and is_allowed(value)):
        raise wrong_value(name, requirement, value)


def require_positive(name: str, value: Any) -> None:
    """Raises InputError unless `is_positive(value)`."""
    require_number(name, value, "a positive number", is_positive)


def require_share(name: str, value: Any) -> None:
    """Raises InputError unless `value` is at least 0 and below 1."""
    require_number(name, value, "at least 0 and below 1", lambda x: 0 <= x < 1)


def as_config(config: Any) -> BertConfig:
    """Returns the `config` argument of a model or layer as a `BertConfig`.

    Raises:
      InputError: If it is not a `BertConfig` or the dict of one.
    """
    if isinstance(config, Mapping):
        return BertConfig.from_dict(config)
    if not isinstance(config, BertConfig):
        raise wrong_value(
            "config",
            "a BertConfig, or the dict of its to_dict",
            config,
            "For a checkpoint use from_pretrained.",
        )
    return config


def _size(name: str) -> tuple[int, int, int]:
    """Returns layers, width and heads of a named size."""
    match = None
    if isinstance(name, str):
        match = _GRID_NAME.fullmatch(NAMED_SIZES.get(name, name))
    if match is None:
        raise wrong_value(
            "The name of a size",
            f"{listed(NAMED_SIZES, last='or')}, or a name like L-4_H-256_A-4",
            name,
            did_you_mean(str(name), NAMED_SIZES).strip(),
        )
    layers, hidden_size = int(match[1]), int(match[2])
    if match[3]:
        return layers, hidden_size, int(match[3])
    if hidden_size % _HEAD_WIDTH:
        raise InputError(
            f"The width in {name!r} is not a multiple of {_HEAD_WIDTH}. Add "
            f"the heads, as in {name}_A-2."
        )
    return layers, hidden_size, hidden_size // _HEAD_WIDTH
