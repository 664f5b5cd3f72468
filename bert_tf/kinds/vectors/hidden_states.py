"""Choices of hidden states of the encoder, by name.

`BertFeatureTagger` and `extract_features.py` read them. The command line lists
the names, so the module is free of Keras. Source: table 7 of the paper.
"""

from typing import NamedTuple

from bert_tf.config import BertConfig
from bert_tf.errors import listed, require_choice, wrong_value


class Choice(NamedTuple):
    """A choice of hidden states, and how they become one vector.

    Attributes:
      states: A slice of [embeddings, output of block 0, of block 1, ...].
      num_layers: The number of blocks that the choice needs.
      is_weighted: Whether the states are added with learned weights; otherwise
        they are concatenated.
    """

    states: slice
    num_layers: int = 1
    is_weighted: bool = False


# The rows of table 7.
CHOICES = {
    "embeddings": Choice(slice(0, 1)),
    "second_to_last": Choice(slice(-2, -1), num_layers=2),
    "last": Choice(slice(-1, None)),
    "sum_last_four": Choice(slice(-4, None), num_layers=4, is_weighted=True),
    "concat_last_four": Choice(slice(-4, None), num_layers=4),
    "sum_all": Choice(slice(1, None), is_weighted=True),
}


def choose(layers: str, config: BertConfig) -> Choice:
    """Returns the choice with a name of `CHOICES`.

    Raises:
      InputError: If the name is unknown, or the model has too few layers.
    """
    require_choice("layers", layers, CHOICES)
    depth = config.num_hidden_layers
    possible = [name for name, c in CHOICES.items() if c.num_layers <= depth]
    if layers not in possible:
        raise wrong_value(
            "layers",
            f"one of {listed(possible, last='or')} for a model with "
            f"{depth} layers",
            layers,
        )
    return CHOICES[layers]
