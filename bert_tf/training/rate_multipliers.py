"""Learning rates that differ from variable to variable.

They are pairs of a regular expression and a factor. A variable's rate is
multiplied by the factor of the first expression that is found in its path, and
by 1 if none is.
"""

import math
import re
from collections.abc import Sequence

from bert_tf.errors import InputError

RateMultipliers = Sequence[tuple[str, float]]


def layerwise_rates(
    num_hidden_layers: int, decay: float
) -> tuple[tuple[str, float], ...]:
    """Rates that shrink from layer to layer on the way down to the words.

    Layer k of L has decay^(L - k) of the rate, the embeddings decay^(L + 1),
    the pooler and the heads all of it. What is near the words is general, and
    a task should change it least: Sun et al., "How to Fine-Tune BERT for Text
    Classification?" (arXiv 1905.05583, "layer-wise decreasing layer rate"), for
    whom 0.95 did best. ELECTRA's code has one more factor of `decay` on these.

    The names are those of the model, though nothing else here knows it: as
    with what is excluded from weight decay, the optimizer's recipe is made of
    them, and whoever has other names gives other pairs.

    Args:
      num_hidden_layers: L.
      decay: Ratio of the rates of two neighbouring layers, above 0 up to 1.

    Raises:
      InputError: `decay` is out of its range.
    """
    if not 0 < decay <= 1:
        raise InputError(
            "expected a decay of the rate from layer to layer above 0 and up "
            f"to 1. Received: {decay}"
        )
    layers = tuple(
        (rf"(^|/)layer_{layer}/", decay ** (num_hidden_layers - layer))
        for layer in range(num_hidden_layers)
    )
    embeddings = (r"(^|/)embeddings/", decay ** (num_hidden_layers + 1))
    return (embeddings, *layers)


def check(multipliers: RateMultipliers) -> tuple[tuple[str, float], ...]:
    """The pairs, made of strings and floats.

    Raises:
      InputError: An expression or a factor cannot be used.
    """
    pairs = tuple((pattern, float(factor)) for pattern, factor in multipliers)
    for pattern, factor in pairs:
        if not 0 <= factor < math.inf:
            raise InputError(
                "expected rate_multipliers with factors of 0 up. Received: "
                f"{factor} for {pattern!r}"
            )
        try:
            re.compile(pattern)
        except re.error as error:
            raise InputError(
                "expected rate_multipliers with regular expressions. "
                f"Received: {pattern!r} ({error})"
            ) from error
    return pairs


def multiplier_of(path: str, multipliers: RateMultipliers) -> float:
    """The factor of a variable's rate, by its path."""
    for pattern, factor in multipliers:
        if re.search(pattern, path):
            return factor
    return 1.0
