"""Vectors of texts from BERT, as features for other models.

Source: `extract_features.py` of google-research/bert; section 5.3 of the
paper. Texts are read, tokenized and computed a part at a time, in batches of
similar length, and returned in order. Only `npz_writer` keeps all in memory.
"""

import contextlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging
from keras import ops

from bert_tf.base import files
from bert_tf.config import BertConfig
from bert_tf.data.batching import Features, in_memory
from bert_tf.data.tables import read_lines
from bert_tf.errors import listed, wrong_value
from bert_tf.modeling.encoder import BertModel
from bert_tf.modeling.variables import checkpoint_variables
from bert_tf.tasks.encoding import Encoding, TextEncoding
from bert_tf.tasks.examples import Example, split_pair
from bert_tf.tasks.task import Rows, as_numpy

# The value of --layers that chooses the output of every block.
ALL = "all"

# Limits of the results that are kept in memory.
_BYTES_AT_A_TIME = 1 << 28
_TEXTS_AT_A_TIME = 1 << 12

# Maps rows to the result of `vectors` for all of them, [n, ...].
Predict = Callable[[Features], Mapping[str, np.ndarray]]


class TextFeatures(NamedTuple):
    """The vectors of a text.

    Attributes:
      line: The line of the text, from 0.
      input_ids: The token ids with [CLS] and [SEP], int32 [t].
      vectors: By name of the layer, float32 [t, W], or [W] if pooled.
    """

    line: int
    input_ids: np.ndarray
    vectors: dict[str, np.ndarray]

    @property
    def is_pooled(self) -> bool:
        return any(x.ndim == 1 for x in self.vectors.values())


def read_texts(path: str) -> Iterator[Example]:
    """Reads a text or a pair from each line; a blank line is an empty text.

    Raises:
      InputError: If the file cannot be read or is not UTF-8.
    """
    for line, number in read_lines(path):
        yield Example(
            str(number - 1), *split_pair(line), where=f"{path}:{number}"
        )


class Choice(NamedTuple):
    """A choice of hidden states, and how they become one vector.

    Attributes:
      states: A slice of [embeddings, output of block 0, of block 1, ...].
      num_layers: The number of blocks that the choice needs.
      is_sum: Whether the states are added; otherwise they are concatenated.
    """

    states: slice
    num_layers: int = 1
    is_sum: bool = False


# The rows of table 7 of the paper.
CHOICES = {
    "embeddings": Choice(slice(0, 1)),
    "second_to_last": Choice(slice(-2, -1), num_layers=2),
    "last": Choice(slice(-1, None)),
    "sum_last_four": Choice(slice(-4, None), num_layers=4, is_sum=True),
    "concat_last_four": Choice(slice(-4, None), num_layers=4),
    "sum_all": Choice(slice(1, None), is_sum=True),
}


def choose_layers(layers: str, config: BertConfig) -> dict[str, Choice]:
    """Returns the hidden states of a comma-separated list of layers, by name.

    A layer is a number as in the original (0 is the first block, -1 the last),
    `layer_0` and so on, a name in `CHOICES`, or `all` for every block.

    Raises:
      InputError: If a layer does not exist or is named twice.
    """
    count = config.num_hidden_layers
    known = {name: c for name, c in CHOICES.items() if c.num_layers <= count}
    names = listed([*known, ALL], last="or")
    for n in range(count):
        # State 0 is the embeddings.
        block = Choice(slice(n + 1, n + 2))
        known |= dict.fromkeys((str(n), str(n - count), f"layer_{n}"), block)
    chosen: list[str] = []
    for item in map(str.strip, layers.split(",")):
        chosen += (
            [f"layer_{n}" for n in range(count)] if item == ALL else [item]
        )
    for name in chosen:
        if name not in known:
            raise wrong_value(
                "`layers`",
                f"from {-count} to {count - 1}, layer_0 to layer_{count - 1}, "
                f"{names}",
                name,
            )
    if len({*chosen}) < len(chosen):
        raise wrong_value("`layers`", "a list of different layers", layers)
    return {name: known[name] for name in chosen}


def fill_padding(x, input_mask, value):
    """Replaces the vectors of padding in `x`, [b, s, W], by `value`."""
    # LiteRT cannot convert `is_token[..., None]`.
    is_token = ops.expand_dims(ops.cast(input_mask, "bool"), -1)
    return ops.where(is_token, x, value)


def _mean(x, input_mask):
    tokens = ops.sum(ops.cast(input_mask, x.dtype), axis=1, keepdims=True)
    totals = ops.sum(fill_padding(x, input_mask, 0), axis=1)
    return totals / ops.maximum(tokens, 1)


# Functions of vectors [b, s, W] and `input_mask`, integers [b, s].
POOLINGS: dict[str, Callable] = {
    "none": lambda x, mask: x,
    "cls": lambda x, mask: x[:, 0],
    "mean": _mean,
    "max": lambda x, mask: ops.max(fill_padding(x, mask, -np.inf), axis=1),
}


def vectors(
    outputs: Mapping,
    input_mask: Any,
    choices: Mapping[str, Choice],
    pooling: str = "none",
) -> dict:
    """Returns vectors by name, float32 [b, s, W], or [b, W] if pooled.

    Args:
      outputs: The outputs of a `BertModel` with `output_hidden_states`.
      input_mask: Integers [b, s].
      choices: The hidden states by name; see `choose_layers`.
      pooling: One of `POOLINGS`: the vector of each token, the vector of
        [CLS], or the mean or maximum over all tokens, [CLS] and [SEP]
        included.
    """
    by_layer = {}
    for name, choice in choices.items():
        states = outputs["hidden_states"][choice.states]
        chosen = [ops.cast(x, "float32") for x in states]
        x = sum(chosen) if choice.is_sum else ops.concatenate(chosen, -1)
        by_layer[name] = POOLINGS[pooling](x, input_mask)
    return by_layer


class VectorTask:
    """The task of an `Estimator` that computes vectors of texts.

    Args:
      config: The configuration of the model.
      choices: The hidden states by name; see `choose_layers`.
      pooling: One of `POOLINGS`.
    """

    # The pooler has no effect.
    new_variables = "bert/pooler/"
    lora_rank = lora_alpha = None
    checkpoint_variables = staticmethod(checkpoint_variables)

    def __init__(
        self, config: BertConfig, choices: Mapping[str, Choice], pooling: str
    ):
        self.config = config
        self._choices = choices
        self._pooling = pooling

    def build_model(self, is_restored: bool = False) -> BertModel:
        """See `Task`."""
        model = BertModel(self.config, output_hidden_states=True)
        return model.build_weights(is_restored)

    def predictions(self, features: Mapping, outputs: Mapping) -> dict:
        """See `vectors`."""
        mask = features["input_mask"]
        return vectors(outputs, mask, self._choices, self._pooling)


def extract(
    texts: Iterable[Example],
    encoding: TextEncoding,
    predict: Predict,
    *,
    texts_at_a_time: int,
    doc_stride: int | None = None,
    pooling: str = "none",
) -> Iterator[TextFeatures]:
    """Yields the vectors of texts, in order.

    With `doc_stride`, longer texts are read in windows, and `pooling` must be
    "mean" or "max". The vector of a text is then the maximum of its windows'
    vectors, or their mean weighted by the number of tokens.
    """
    line, num_cut = 0, 0
    # "regression" is the problem without labels.
    fields = {**vars(encoding), "problem": "regression"}
    encoding = Encoding(**fields, doc_stride=doc_stride)
    for part in encoding.split(texts, texts_at_a_time):
        encoded = encoding.encode(part)
        batch = encoded.batch
        outputs = predict(in_memory([batch], encoding.schema))
        lengths = batch["input_mask"].sum(axis=1)
        firsts = np.cumsum([0, *encoded.counts])[:-1]
        if doc_stride is not None:
            rows = Rows.of(batch["window_numbers"])
            outputs = as_numpy(
                {n: rows.pool(x, pooling, lengths) for n, x in outputs.items()}
            )
        for text, row in enumerate(firsts):
            length = lengths[row]
            yield TextFeatures(
                line,
                batch["input_ids"][row, :length],
                {
                    name: x[text, :length] if x.ndim == 3 else x[text]
                    for name, x in outputs.items()
                },
            )
            line += 1
        num_cut += encoded.num_cut
    if num_cut:
        logging.warning(
            "%d of %d texts were truncated to `max_seq_length=%d`",
            num_cut,
            line,
            encoding.max_seq_length,
        )


def how_many_at_a_time(
    choices: Mapping[str, Choice],
    config: BertConfig,
    *,
    vectors_per_text: int,
    batch_size: int,
) -> int:
    """Returns how many texts fit into memory with their vectors.

    The result is a multiple of `batch_size`, and at least one batch.
    """
    states = range(config.num_hidden_layers + 1)
    widths = [
        1 if choice.is_sum else len(states[choice.states])
        for choice in choices.values()
    ]
    floats = vectors_per_text * sum(widths) * config.hidden_size
    most = _BYTES_AT_A_TIME // (floats * np.float32().nbytes)
    return max(1, min(most, _TEXTS_AT_A_TIME) // batch_size) * batch_size


# ----------------------------------------------------------------------- files

# Each writer opens a file and yields a function that appends a text. `vocab`
# has the tokens in the order of their ids; only `jsonl_writer` needs it.
Write = Callable[[TextFeatures], object]


@contextlib.contextmanager
def jsonl_writer(path: str, vocab: Sequence[str]) -> Iterator[Write]:
    """Writes one JSON object per line, byte for byte as the original.

        {"linex_index": 0, "features": [{"token": "[CLS]", "layers":
            [{"index": -1, "values": [0.1, ...]}, ...]}, ...]}

    `index` is the number or name of the layer as passed in `layers`. For pooled
    vectors, which the original does not have, there are `layers` instead of
    `features`.
    """

    def layers(values: dict[str, list]) -> list[dict[str, Any]]:
        return [
            {
                "index": int(name) if name.lstrip("-").isdecimal() else name,
                "values": value,
            }
            for name, value in values.items()
        ]

    def write(text: TextFeatures) -> None:
        # Equals Python's `round(float(x), 6)`: NumPy multiplies by a million
        # before it rounds, and for float32 values the product is exact.
        rounded = {
            name: np.round(x.astype(np.float64), 6).tolist()
            for name, x in text.vectors.items()
        }
        content: dict[str, Any] = {"linex_index": text.line}
        if text.is_pooled:
            content["layers"] = layers(rounded)
        else:
            content["features"] = [
                {
                    "token": vocab[token],
                    "layers": layers({k: x[n] for k, x in rounded.items()}),
                }
                for n, token in enumerate(text.input_ids)
            ]
        file.write(f"{json.dumps(content)}\n".encode())

    with files.atomic_writer(path) as file:
        yield write


@contextlib.contextmanager
def npz_writer(path: str, vocab: Sequence[str]) -> Iterator[Write]:
    """Writes arrays for `numpy.load`, by name of the layer.

    Pooled vectors are float32 [n, W], a row for each line. Otherwise the tokens
    of all texts are concatenated, float32 [tokens, W], with their `input_ids`,
    int32 [tokens]. The tokens of line i are the rows from `offsets[i]` to
    `offsets[i + 1]`, int64 [n + 1].

    The arrays are in memory until the end.
    """
    del vocab
    columns: dict[str, list[np.ndarray]] = {}

    def write(text: TextFeatures) -> None:
        rows = {**text.vectors, "input_ids": text.input_ids}
        if text.is_pooled:
            rows = {n: x[np.newaxis] for n, x in text.vectors.items()}
        for name, values in rows.items():
            columns.setdefault(name, []).append(values)

    with files.atomic_writer(path) as file:
        yield write
        if "input_ids" in columns:
            lengths = [len(ids) for ids in columns["input_ids"]]
            columns["offsets"] = [np.cumsum([0, *lengths])]
        arrays = {n: np.concatenate(columns.pop(n)) for n in [*columns]}
        # Remote files cannot be written in parts by zipfile.
        target = io.BytesIO() if files.is_remote(path) else file
        np.savez(target, **arrays)
        if target is not file:
            file.write(target.getvalue())


WRITERS = {"jsonl": jsonl_writer, "npz": npz_writer}
