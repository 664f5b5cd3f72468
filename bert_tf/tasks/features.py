"""Vectors of texts, for whatever is to learn from them.

Source: `extract_features.py` of google-research/bert; section 5.3 of the
paper. Texts are read, tokenized and computed some at a time, in batches of
about one length, and come back in their order: memory does not grow with the
file.
"""

import contextlib
import io
import itertools
import json
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging
from keras import ops

from bert_tf import files
from bert_tf.config import BertConfig
from bert_tf.data import pipeline
from bert_tf.data.records import RecordWriter, encode_batch
from bert_tf.data.schema import Feature
from bert_tf.data.tables import read_lines
from bert_tf.errors import InputError
from bert_tf.feature_tagger import CHOICES, Choice, choose
from bert_tf.tasks.encoding import Encoding, TextEncoding, make_features
from bert_tf.tasks.examples import Example

# Vectors of texts, for whatever is to learn from them.


# What is between the texts of a pair.
SEPARATOR = " ||| "
# All blocks, one by one.
ALL = "all"

# Results that may wait for others to be written.
_BYTES_AT_A_TIME = 1 << 28
_TEXTS_AT_A_TIME = 1 << 12

_INPUTS = ("input_ids", "input_mask", "segment_ids")

# From the inputs of a batch, int32 [b, s], to what `vectors` makes of them.
Compute = Callable[[dict[str, np.ndarray]], Mapping[str, np.ndarray]]


class TextFeatures(NamedTuple):
    """A text and what the model makes of it.

    Attributes:
      line: The number of its line, from 0.
      input_ids: Its tokens, [CLS] and [SEP] included, int32 [t].
      vectors: By the names of the layers, float32 [t, W], or [W] if pooled.
    """

    line: int
    input_ids: np.ndarray
    vectors: dict[str, np.ndarray]


def read_texts(path: str) -> Iterator[Example]:
    """Reads a text or a pair a line; what is blank is an empty text.

    Raises:
      InputError: The file cannot be read or is not UTF-8.
    """
    for line, number in read_lines(path):
        yield Example(
            str(number - 1), *split_pair(line), where=f"{path}:{number}"
        )


def split_pair(line: str) -> tuple[str, str | None]:
    """The text of a line, or the two that it has.

    `a ||| b` is a pair, which the last separator of its line splits. White
    space at both ends of a line goes before, so that a separator there is
    none. Source: `read_examples` of `extract_features.py`.
    """
    first, separator, last = line.strip().rpartition(SEPARATOR)
    return (first, last) if separator else (last, None)


# ------------------------------------------------------------------- layers


def choose_layers(layers: str, config: BertConfig) -> dict[str, Choice]:
    """What a comma list of layers means for a model.

    Args:
      layers: Numbers as the original has them (0 is the first block, -1 the
        last), `layer_0` and so on, the names of `feature_tagger.CHOICES`, of
        which `sum_` is a plain sum here, or `all`: every block.
      config: The model's.

    Returns:
      Dict from each name, as it was given, to the hidden states.

    Raises:
      InputError: There is no such layer, or one stands there twice.
    """
    blocks = [f"layer_{n}" for n in range(config.num_hidden_layers)]
    names = [
        name
        for item in layers.split(",")
        for name in (blocks if item.strip() == ALL else [item.strip()])
    ]
    if len(names) > len(set(names)):
        raise InputError(
            f"expected each layer once. Received: --layers={layers}"
        )
    return {name: _choice(name, config) for name in names}


def _choice(name: str, config: BertConfig) -> Choice:
    if name in CHOICES:
        return choose(name, config)
    count = config.num_hidden_layers
    # `int` takes spaces and underscores, too.
    number = re.fullmatch(r"(?:layer_(?=\d))?(-?\d+)", name, re.ASCII)
    if not number or not -count <= int(number[1]) < count:
        raise InputError(
            f"expected --layers from {-count} to {count - 1}, layer_0 to "
            f"layer_{count - 1}, {', '.join(CHOICES)}, or {ALL}. Received: "
            f"{name!r}"
        )
    # The embeddings are the first of the hidden states.
    state = int(number[1]) % count + 1
    return Choice(slice(state, state + 1))


# ------------------------------------------------------------------ vectors


def _mean(x, is_token):
    tokens = ops.maximum(ops.sum(ops.cast(is_token, x.dtype), axis=1), 1)
    return ops.sum(ops.where(is_token, x, 0), axis=1) / tokens


# From vectors [b, s, W] and what of them is no padding, bool [b, s, 1].
POOLINGS: dict[str, Callable] = {
    "none": lambda x, is_token: x,
    "cls": lambda x, is_token: x[:, 0],
    "mean": _mean,
    "max": lambda x, is_token: ops.max(ops.where(is_token, x, -np.inf), axis=1),
}


def vectors(
    outputs: Mapping,
    input_mask: Any,
    choices: Mapping[str, Choice],
    pooling: str = "none",
) -> dict:
    """The vectors that were asked for.

    Args:
      outputs: Of a `BertModel` with `output_hidden_states`.
      input_mask: Integers [b, s].
      choices: By name, see `choose_layers`.
      pooling: One of `POOLINGS`: each token's vector; that of [CLS]; or the
        mean or the maximum over all tokens, [CLS] and [SEP] included.

    Returns:
      Dict from each name to float32 [b, s, W], or [b, W] if pooled.
    """
    is_token = ops.cast(input_mask, "bool")[..., None]
    states = outputs["hidden_states"]
    return {
        name: POOLINGS[pooling](_combined(states, choice), is_token)
        for name, choice in choices.items()
    }


def _combined(states: list, choice: Choice):
    chosen = [ops.cast(x, "float32") for x in states[choice.states]]
    return sum(chosen) if choice.is_weighted else ops.concatenate(chosen, -1)


# --------------------------------------------------------------- extraction


def extract(
    texts: Iterable[Example],
    encoding: TextEncoding,
    compute: Compute,
    *,
    batch_size: int,
    texts_at_a_time: int,
    multiple: int = 8,
) -> Iterator[TextFeatures]:
    """Computes the vectors of texts, in their order.

    Args:
      texts: See `read_texts`.
      encoding: From texts to ids.
      compute: What the model does with a batch.
      batch_size: Texts of full length in a batch; as many times more make a
        batch as they are shorter.
      texts_at_a_time: How many are in memory.
      multiple: Lengths of batches are rounded up to it.
    """
    texts, line, num_cut = iter(texts), 0, 0
    # No task has texts without labels; of a number nothing is asked.
    encoding = Encoding(**vars(encoding), problem="regression", labels=())
    while part := list(itertools.islice(texts, texts_at_a_time)):
        encoded = make_features(part, encoding)
        lengths = encoded.batch["input_mask"].sum(axis=1)
        found = _compute_part(
            encoded.batch, lengths, compute, batch_size, multiple
        )
        for ids, length, row in zip(
            encoded.batch["input_ids"], lengths, found, strict=True
        ):
            yield TextFeatures(line, ids[:length], row)
            line += 1
        num_cut += encoded.num_cut
    if num_cut:
        logging.warning(
            "%d of %d texts were cut to --max_seq_length=%d",
            num_cut,
            line,
            encoding.max_seq_length,
        )


def _compute_part(
    batch: Mapping[str, np.ndarray],
    lengths: np.ndarray,
    compute: Compute,
    batch_size: int,
    multiple: int,
) -> list[dict[str, np.ndarray]]:
    """The vectors of each row of `batch`, int32 [n, max_seq_length]."""
    longest = batch["input_mask"].shape[1]
    padded = np.minimum(-(-lengths // multiple) * multiple, longest)
    plan = pipeline.evaluation_plan(
        padded, max_length=longest, batch_size=batch_size, num_shards=1
    )
    found: list[dict[str, np.ndarray]] = [{} for _ in lengths]
    for rows, width in zip(plan.batches, plan.lengths, strict=True):
        rows = rows[rows >= 0]
        values = compute({name: batch[name][rows, :width] for name in _INPUTS})
        for place, row in enumerate(rows):
            found[row] = {
                name: _without_padding(value[place], lengths[row])
                for name, value in values.items()
            }
    return found


def _without_padding(vector: np.ndarray, length: int) -> np.ndarray:
    return vector[:length] if vector.ndim == 2 else vector


def how_many_at_a_time(
    choices: Mapping[str, Choice],
    config: BertConfig,
    *,
    places: int,
    batch_size: int,
) -> int:
    """Texts whose vectors may be in memory, at least a batch of them.

    Args:
      choices: See `choose_layers`.
      config: The model's.
      places: Vectors of a text: `max_seq_length`, or 1 if they are pooled.
      batch_size: Texts of full length in a batch; the result is a multiple.
    """
    states = range(config.num_hidden_layers + 1)
    widths = [
        1 if choice.is_weighted else len(states[choice.states])
        for choice in choices.values()
    ]
    size = places * sum(widths) * config.hidden_size * np.float32().nbytes
    most = min(_BYTES_AT_A_TIME // size, _TEXTS_AT_A_TIME)
    return max(1, most // batch_size) * batch_size


# Vectors of texts in files: the original's JSON lines, NumPy's, TFRecord.


Write = Callable[[TextFeatures], object]


# --------------------------------------------------------------- JSON lines


@contextlib.contextmanager
def jsonl_writer(path: str, vocab: Sequence[str]) -> Iterator[Write]:
    """Writes an object a line, as the original does to the byte.

        {"linex_index": 0, "features": [{"token": "[CLS]", "layers":
            [{"index": -1, "values": [0.1, ...]}, ...]}, ...]}

    `index` is the layer as it was asked for, a number or a name. Of pooled
    vectors, which the original has not, there are `layers` in the place of
    `features`.

    Args:
      path: The file; one of that name is replaced.
      vocab: The tokens, in the order of their ids.

    Raises:
      InputError: The place cannot be written to, or is full.
    """
    with files.atomic_writer(path) as file:
        yield lambda text: file.write(_json_line(text, vocab).encode())


def _json_line(text: TextFeatures, vocab: Sequence[str]) -> str:
    rounded = {name: _rounded(x) for name, x in text.vectors.items()}
    if _is_pooled(text):
        content = {"layers": _json_layers(rounded)}
    else:
        content = {
            "features": [
                {
                    "token": vocab[token],
                    "layers": _json_layers(
                        {name: x[place] for name, x in rounded.items()}
                    ),
                }
                for place, token in enumerate(text.input_ids)
            ]
        }
    return json.dumps({"linex_index": text.line, **content}) + "\n"


def _rounded(x: np.ndarray) -> list:
    """`round(float(x), 6)` of each float32.

    Times a million they are exact as float64, so that NumPy's way to round,
    which goes over it, gives the nearest decimal as Python's does.
    """
    return np.round(x.astype(np.float64), 6).tolist()


def _json_layers(values: dict[str, list]) -> list[dict[str, Any]]:
    return [
        {"index": _index(name), "values": value}
        for name, value in values.items()
    ]


def _index(name: str) -> int | str:
    return int(name) if name.lstrip("-").isdecimal() else name


def _is_pooled(text: TextFeatures) -> bool:
    return any(x.ndim == 1 for x in text.vectors.values())


# -------------------------------------------------------------------- NumPy


@contextlib.contextmanager
def npz_writer(path: str, vocab: Sequence[str]) -> Iterator[Write]:
    """Writes arrays for `numpy.load`, those of layers by their names.

    Pooled vectors are float32 [n, W]: a row for each line. Otherwise the
    tokens of all texts follow each other, float32 [tokens, W], beside their
    `input_ids`, int32 [tokens]; those of line i are the rows from `offsets[i]`
    to `offsets[i + 1]`, int64 [n + 1].

    How long an array is stands at its beginning, and is known at the end: till
    then each is in a file without a name, beside the output.

    Args:
      path: The file; one of that name is replaced.
      vocab: Not needed.

    Raises:
      InputError: The place cannot be written to, or is full.
    """
    del vocab
    has_room = not files.is_remote(path) and not files.is_special(path)
    folder = os.path.dirname(files.follow_links(path)) if has_room else None
    with files.atomic_writer(path) as file, contextlib.ExitStack() as stack:
        columns = _Columns(
            lambda: stack.enter_context(tempfile.TemporaryFile(dir=folder))
        )
        yield columns.add
        columns.write_to(_OneWay(file) if files.is_remote(path) else file)


class _OneWay(io.RawIOBase):
    """A file to write from its beginning to its end.

    Of TensorFlow's own zipfile would ask where it is, which not all can tell,
    and how much was written, which none does.
    """

    def __init__(self, file: Any):
        self._file = file

    def write(self, data: Any) -> int:
        self._file.write(bytes(data))
        return len(data)


class _Columns:
    """The arrays of a file, while it is not known how long they will be.

    Args:
      open_file: Opens a file for one of them.
    """

    def __init__(self, open_file: Callable[[], Any]):
        self._open_file = open_file
        self._columns: dict[str, _Column] = {}

    def add(self, text: TextFeatures) -> None:
        if _is_pooled(text):
            for name, vector in text.vectors.items():
                self._append(name, vector[np.newaxis])
            return
        if not self._columns:
            self._append("offsets", np.zeros(1, np.int64))
        for name, rows in text.vectors.items():
            self._append(name, rows)
        self._append("input_ids", text.input_ids)
        self._append("offsets", np.array([self._columns["input_ids"].count]))

    def _append(self, name: str, rows: np.ndarray) -> None:
        if name not in self._columns:
            self._columns[name] = _Column(self._open_file(), rows)
        self._columns[name].append(rows)

    def write_to(self, file: Any) -> None:
        """Writes what `numpy.load` reads."""
        with zipfile.ZipFile(file, "w") as archive:
            for name, column in self._columns.items():
                # Not by its name alone, which would add the time.
                member = zipfile.ZipInfo(f"{name}.npy")
                with archive.open(member, "w", force_zip64=True) as target:
                    column.copy_to(target)


class _Column:
    """An array that is written some rows at a time.

    Args:
      file: Where to keep them, to be read again.
      rows: Such as will come.

    Attributes:
      count: How many there are.
    """

    def __init__(self, file: Any, rows: np.ndarray):
        self.count = 0
        self._file = file
        self._row_shape, self._dtype = rows.shape[1:], rows.dtype

    def append(self, rows: np.ndarray) -> None:
        self._file.write(rows.tobytes())
        self.count += len(rows)

    def copy_to(self, target: Any) -> None:
        """Writes it as a `.npy` file."""
        header = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (self.count, *self._row_shape),
        }
        np.lib.format.write_array_header_1_0(target, header)
        self._file.seek(0)
        shutil.copyfileobj(self._file, target)


# ----------------------------------------------------------------- TFRecord


@contextlib.contextmanager
def tfrecord_writer(path: str, vocab: Sequence[str]) -> Iterator[Write]:
    """Writes a `tf.train.Example` for each text.

    It holds `line_index`, `input_ids` [t], and the vectors of each layer by
    its name, floats [t * W], or [W] if pooled. To be read by
    `tf.io.FixedLenSequenceFeature([W], tf.float32, allow_missing=True)`.

    Args:
      path: The file, compressed if its name ends in `.gz`.
      vocab: Not needed.

    Raises:
      InputError: The place cannot be written to, or is full.
    """
    del vocab
    with RecordWriter(path) as writer:
        yield lambda text: writer.write_all(_records(text))


def _records(text: TextFeatures) -> list[bytes]:
    arrays = {
        "line_index": np.array(text.line),
        "input_ids": text.input_ids,
        **text.vectors,
    }
    schema = tuple(
        Feature(name, x.shape, "float32" if x.dtype.kind == "f" else "int64")
        for name, x in arrays.items()
    )
    return encode_batch(schema, {k: x[np.newaxis] for k, x in arrays.items()})


WRITERS = {
    "jsonl": jsonl_writer,
    "npz": npz_writer,
    "tfrecord": tfrecord_writer,
}
