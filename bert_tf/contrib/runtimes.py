"""Exports for ONNX Runtime and LiteRT, and their comparison with the original.

These runtimes cannot tokenize strings, so only the signature `tokens` is
converted: ids in, probabilities, logits or embeddings out. The runtimes'
packages are large, so they are imported where they are used.
"""

import dataclasses
import functools
import math
import os
import pathlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging
from tensorflow.python.framework.convert_to_constants import (
    convert_variables_to_constants_v2,
)

from bert_tf.contrib.exported import Arrays, Exported, join_rows
from bert_tf.errors import in_file
from bert_tf.serving import export, readme

# Maps a batch of `Exported.token_inputs` to `Exported.numbers`.
Run = Callable[[Mapping[str, np.ndarray]], Arrays]

# Supported by ONNX Runtime 1.14 (2023) and newer.
OPSET = 18

# The loggers of the converters; ONNX Runtime's quantizer uses the root logger.
_LOGGERS = ("tensorflow", "tf2onnx", "root")

_LOOPS = {"While", "StatelessWhile"}

# Both formats store sizes in 31 bits.
_MOST_BYTES = 1 << 31


@dataclasses.dataclass(frozen=True)
class Runtime:
    """A format and its runtime.

    Attributes:
      title: The name of the runtime.
      extension: The extension of the files.
      convert: Converts an export to the bytes of a float32 file.
      quantize: Converts an export, and the result of `convert`, to the bytes of
        a file with 8-bit weights.
      load: Converts the bytes of a file to a function that runs the model.
    """

    title: str
    extension: str
    convert: Callable[[Exported], bytes]
    quantize: Callable[[Exported, bytes], bytes]
    load: Callable[[bytes], Run]


def require_convertible(exported: Exported) -> None:
    """Raises InputError if the formats do not support an export."""
    card = exported.card
    wrong = None
    if card["dtype_policy"] != "float32":
        wrong = (
            f"it has the precision {card['dtype_policy']}. Export it again "
            "in float32"
        )
    elif card["kind"] == "masked language model":
        wrong = "a masked language model returns words"
    elif exported.ops & _LOOPS:
        wrong = "the loops of LSTMs cannot be converted"
    elif card["parameters"] * np.float32().nbytes >= _MOST_BYTES:
        wrong = f"{card['parameters']:,} weights are too many for a file"
    if wrong:
        raise in_file(
            exported.path, f"ONNX and LiteRT cannot hold this export: {wrong}."
        )


# Silences what converters log for their own developers.
_quiet = functools.partial(export.at_least, logging.ERROR, *_LOGGERS)


@_quiet()
def _to_onnx(exported: Exported) -> bytes:
    """Returns an ONNX model of `OPSET` for any batch size and length."""
    import tf2onnx

    model, _ = tf2onnx.convert.from_function(
        _constant_function(exported),
        input_signature=list(exported.token_inputs.values()),
        opset=OPSET,
        custom_op_handlers={"Erfc": (_erfc_in_onnx, [])},
        custom_rewriter=[_hide_sizes_of_one],
    )
    return model.SerializeToString()


def _hide_sizes_of_one(graph: Any, nodes: list) -> list:
    """Hides from tf2onnx which sizes of transposed tensors are 1.

    tf2onnx turns a transpose that only moves an axis of size 1, such as a
    single attention head, into a reshape, and merges it with the next reshape.
    In a reshape, 0 means "as in the input", but the input's axes are then in a
    different order.
    """
    for node in nodes:
        if node.type == "Transpose" and graph.get_shape(node.input[0]):
            shape = graph.get_shape(node.input[0])
            unknown = [-1 if size == 1 else size for size in shape]
            graph.set_shape(node.input[0], unknown)
    return nodes


def _erfc_in_onnx(graph: Any, node: Any, name: str, arguments: list) -> None:
    """Converts erfc(x), which the erf GELU uses, to 1 - erf(x).

    For large x, this has the absolute rounding error of numbers near 1. The
    error of GELU is not larger.
    """
    del arguments
    node.type = "Erf"
    [output] = node.output
    one = graph.make_const(f"{name}/one", np.float32(1)).output[0]
    graph.insert_new_node_on_output("Sub", output, inputs=[one, output])


@_quiet()
def _to_onnx_int8(exported: Exported, content: bytes) -> bytes:
    """Quantizes weights to 8 bits; activations are quantized at run time."""
    del exported
    import onnx
    from onnxruntime import quantization

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.onnx")
        quantization.quantize_dynamic(
            onnx.load_from_string(content),
            path,
            weight_type=quantization.QuantType.QInt8,
            # Halves the error compared with one scale for all columns.
            per_channel=True,
        )
        return pathlib.Path(path).read_bytes()


def _run_onnx(content: bytes) -> Run:
    import onnxruntime

    session = onnxruntime.InferenceSession(
        content, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]

    def run(features: Mapping[str, np.ndarray]) -> Arrays:
        values = session.run(names, dict(features))
        return dict(zip(names, values, strict=True))

    return run


@_quiet()
def _to_litert(exported: Exported, optimizations: Sequence[Any] = ()) -> bytes:
    """Returns a LiteRT model for any batch size and length."""
    root = tf.Module()
    root.model = exported.model
    function = _numbers(exported).get_concrete_function(**exported.token_inputs)
    converter = tf.lite.TFLiteConverter.from_concrete_functions(
        [function], root
    )
    converter.optimizations = [*optimizations]
    return converter.convert()


def _to_litert_int8(exported: Exported, content: bytes) -> bytes:
    """Quantizes weights to 8 bits ("dynamic range quantization")."""
    del content
    return _to_litert(exported, [tf.lite.Optimize.DEFAULT])


def _run_litert(content: bytes) -> Run:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=content, num_threads=os.cpu_count())
    signature = interpreter.get_signature_runner()

    def run(features: Mapping[str, np.ndarray]) -> Arrays:
        return signature(**features)

    return run


def _numbers(exported: Exported) -> Callable:
    """Returns the signature `tokens` without outputs of strings."""

    @tf.function
    def numbers(**features):
        answer = exported.model.signatures["tokens"](**features)
        return {name: answer[name] for name in exported.numbers}

    return numbers


def _constant_function(exported: Exported) -> Callable:
    """Returns `_numbers` as a graph of constants without tables.

    In TensorFlow, all outputs of a function depend on its tables, which ONNX
    does not support.
    """
    specs = exported.token_inputs
    frozen = convert_variables_to_constants_v2(
        _numbers(exported).get_concrete_function(**specs)
    )
    graph = frozen.graph.as_graph_def()
    for node in graph.node:
        node.input[:] = [name for name in node.input if name[0] != "^"]
    outputs = [output.name for output in frozen.outputs]
    graph = tf.compat.v1.graph_util.extract_sub_graph(
        graph, [output.op.name for output in frozen.outputs]
    )

    @tf.function
    def function(*features):
        named_specs = zip(specs, features, strict=True)
        values = tf.graph_util.import_graph_def(
            graph,
            {f"{name}:0": value for name, value in named_specs},
            outputs,
            name="",
        )
        # A graph returns the values of a dict sorted by key.
        return dict(zip(exported.numbers, values, strict=True))

    return function


RUNTIMES = {
    "onnx": Runtime(
        "ONNX Runtime",
        ".onnx",
        _to_onnx,
        _to_onnx_int8,
        _run_onnx,
    ),
    "litert": Runtime(
        "LiteRT",
        ".tflite",
        _to_litert,
        _to_litert_int8,
        _run_litert,
    ),
}


# Comparison of a converted model with the export.

# The tolerance of a float32 model: absolute for outputs up to 1, relative to
# the largest value for larger ones, such as logits.
TOLERANCE = 1e-4
# The share of classes or tags that may change because two are about equally
# likely.
MOST_CHANGED = 1e-3

_ROWS_AT_A_TIME = 32
# Batches of random ids: rows, and length as a share of max_seq_length.
_SHAPES = ((1, 0.0), (1, 1.0), (2, 0.1), (7, 0.3), (5, 0.7), (3, 1.0))

# Maps one row or more to their outputs, in order.
Ask = Callable[[Mapping[str, np.ndarray]], Arrays]


class Measured(NamedTuple):
    """The outputs of a model for each batch, and its scores, if any."""

    answers: list[Arrays]
    scores: dict[str, float]


class Difference(NamedTuple):
    """The difference between two models.

    Attributes:
      largest: The largest absolute difference; infinite if shapes differ or a
        number is not finite.
      relative: The largest difference of an output, divided by the output's
        largest value if that is above 1.
      output: The output with the largest `relative`.
      changed: The largest share of integers or booleans of an output that
        differ.
    """

    largest: float
    relative: float
    output: str
    changed: float

    @property
    def is_rounding(self) -> bool:
        """Whether the models differ by rounding only."""
        return self.relative <= TOLERANCE and self.changed <= MOST_CHANGED


def random_features(exported: Exported, seed: int = 0) -> list[Arrays]:
    """Returns random batches of `Exported.token_inputs`, int32 [b, ..., S].

    Rows have different lengths of at least one token, then padding.
    """
    generator = np.random.default_rng(seed)
    most = exported.card["encoding"]["max_seq_length"]
    inner = exported.token_inputs["input_ids"].shape[1:-1]
    batches = []
    for num_rows, share in _SHAPES:
        length = max(1, round(share * most))
        shape = (num_rows, *inner, length)
        ends = generator.integers(1, length + 1, shape[:-1])[..., np.newaxis]
        seconds = generator.integers(0, length + 1, shape[:-1])[..., np.newaxis]
        positions = np.arange(length)
        is_second = (positions >= seconds) & (exported.num_segments > 1)
        ids = generator.integers(0, exported.card["vocab_size"], shape)
        mask = positions < ends  # [b, ..., S]
        batches.append(
            {
                "input_ids": (ids * mask).astype(np.int32),
                "input_mask": mask.astype(np.int32),
                "segment_ids": (is_second & mask).astype(np.int32),
            }
        )
    return batches


def measure(
    run: Run,
    batches: Sequence[Mapping[str, np.ndarray]],
    score: Callable[[Ask], Mapping[str, float]] | None = None,
) -> Measured:
    """Runs a model on batches, and on the inputs that `score` passes to it."""
    answers = [run(batch) for batch in batches]

    def ask(features: Mapping[str, np.ndarray]) -> Arrays:
        answers.append(answer_rows(run, features))
        return answers[-1]

    return Measured(answers, dict(score(ask)) if score else {})


def answer_rows(run: Run, features: Mapping[str, np.ndarray]) -> Arrays:
    """Runs a model on one row or more, in batches of similar lengths.

    Args:
      run: The model.
      features: Int32 [n, ..., S].

    Returns:
      Arrays [n, ...], padded with zeros.
    """
    mask = features["input_mask"]
    positions = np.arange(1, mask.shape[-1] + 1)
    lengths = (mask * positions).reshape(len(mask), -1).max(axis=1)
    order = np.argsort(lengths, kind="stable")
    parts = []
    for start in range(0, len(order), _ROWS_AT_A_TIME):
        rows = order[start : start + _ROWS_AT_A_TIME]
        longest = max(1, lengths[rows].max())
        parts.append(
            run({n: ids[rows, ..., :longest] for n, ids in features.items()})
        )
    back = np.argsort(order)
    return {n: values[back] for n, values in join_rows(parts).items()}


def difference(expected: Measured, measured: Measured) -> Difference:
    """Compares the outputs of two models for the same inputs."""
    largest, relative, output, changed = 0.0, 0.0, "", 0.0
    for name in expected.answers[0]:
        pairs = [
            (one[name], other[name])
            for one, other in zip(
                expected.answers, measured.answers, strict=True
            )
        ]
        if any(one.shape != other.shape for one, other in pairs):
            return Difference(math.inf, math.inf, name, 1.0)
        if pairs[0][0].dtype.kind != "f":
            changed = max(changed, _share_changed(pairs))
            continue
        off, most = _largest_difference(pairs)
        largest = max(largest, off)
        if not output or off / max(1.0, most) > relative:
            relative, output = off / max(1.0, most), name
    return Difference(largest, relative, output, changed)


_Pairs = Sequence[tuple[np.ndarray, np.ndarray]]


def _largest_difference(pairs: _Pairs) -> tuple[float, float]:
    """Returns the largest difference of floats and their largest value."""
    if not all(np.isfinite(other).all() for _, other in pairs):
        return math.inf, 1.0
    off = max(np.abs(one - other).max(initial=0.0) for one, other in pairs)
    most = max(np.abs(one).max(initial=0.0) for one, _ in pairs)
    return float(off), float(most)


def _share_changed(pairs: _Pairs) -> float:
    num_changed = sum(np.count_nonzero(one != other) for one, other in pairs)
    return num_changed / max(1, sum(one.size for one, _ in pairs))


def cosines(expected: Measured, measured: Measured) -> dict[str, float]:
    """Returns the mean and the lowest cosine similarity of two models' vectors.

    Vectors are the last axes of outputs of floats. Expected vectors of zeros,
    which are padding, are ignored.
    """
    similarities = np.concatenate(
        [
            _cosines(one[name], other[name])
            for one, other in zip(
                expected.answers, measured.answers, strict=True
            )
            for name in one
            if one[name].dtype.kind == "f" and one[name].ndim > 1
        ]
    )
    return {
        "mean cosine": float(similarities.mean()),
        "lowest cosine": float(similarities.min()),
    }


def _cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns the similarities of vectors [..., W] that are not zero, [n]."""
    one, other = (
        values.astype(np.float64).reshape(-1, values.shape[-1])
        for values in (one, other)
    )  # [N, W]
    lengths, others = (np.linalg.norm(v, axis=1) for v in (one, other))
    products = lengths * np.maximum(others, np.finfo(np.float32).tiny)
    is_vector = lengths > 0
    return (one * other).sum(axis=1)[is_vector] / products[is_vector]


class ComparisonRow(NamedTuple):
    """A row of the table: a file."""

    name: str
    size: int  # In bytes.
    difference: Difference | None  # From the export; None for the export.
    scores: Mapping[str, float]


def table(rows: Sequence[ComparisonRow]) -> str:
    """Returns a Markdown table of sizes, differences and scores.

    The first row is the export. In the others, scores are followed by their
    differences from the export's, in parentheses.
    """
    first = rows[0]
    cells = [["file", "MB", "largest difference", *first.scores]]
    cells += [_cells(row, first) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    return "\n".join(
        f"| {' | '.join(map(str.ljust, line, widths))} |" for line in cells
    )


def _cells(row: ComparisonRow, first: ComparisonRow) -> list[str]:
    off = "-" if row.difference is None else f"{row.difference.largest:.1e}"
    return [
        row.name,
        f"{row.size / 1e6:.1f}",
        off,
        *(
            f"{value:.4f}"
            if row is first
            else f"{value:.4f} ({value - first.scores[name]:+.4f})"
            for name, value in row.scores.items()
        ),
    ]


# The README of a converted model.

_PROGRAMS = {
    "onnx": """\
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("{file}")
names = [output.name for output in session.get_outputs()]
features = {features}
answer = dict(zip(names, session.run(names, features)))""",
    "litert": """\
import numpy as np
from ai_edge_litert.interpreter import Interpreter

# Keep the interpreter as long as you use its signature.
interpreter = Interpreter("{file}")
model = interpreter.get_signature_runner()
features = {features}
answer = model(**features)""",
}
_INSTALL = {"onnx": "onnxruntime", "litert": "ai-edge-litert"}

# Filled in by str.format.
_TEMPLATE = """\
# {name}: {kind}, for {title}

Made from an export of bert_tf by `convert_saved_model.py`. Checkpoint:
{source}. Weights of the export, sha256: `{sha256}`.

{table}

After `pip install {package} numpy`, run this program here:

```python
{program}
```

| inputs | outputs |
|---|---|
| {inputs} | {outputs} |

In shapes, the first None is the number of rows, at least 1; a second None is
the length of the longest row.
If there is a `labels.txt`, classes and tags are numbered by its lines, from 0.

The input is `[CLS] text [SEP]`, or `[CLS] first [SEP] second [SEP]`. Ids are
lines of `vocab.txt`, from 0; `input_mask` is 1 for tokens and 0 for padding;
`segment_ids` are 1 in the second text. No row was longer than {max_seq_length}
in training; a row longer than the model's positions is an error. The export's
signature `tokenize` computes all three inputs. Ids without TensorFlow:

```python
from bert_tf import FullTokenizer

tokenizer = FullTokenizer(
    "vocab.txt", do_lower_case={do_lower_case}, strip_accents={strip_accents}
)
ids = tokenizer.encode("...")
```
"""


def runtime_readme(
    exported: Exported, name: str, files: Sequence[str], table: str
) -> str:
    """Returns the README of converted models, in Markdown.

    Args:
      exported: The export.
      name: The runtime, a key of `RUNTIMES`.
      files: The names of the models, the float32 one first.
      table: The models' sizes, differences and scores; see `table`.
    """
    card = exported.card
    features = exported.features(exported.example())
    return _TEMPLATE.format(
        name=card["name"],
        kind=card["kind"],
        title=RUNTIMES[name].title,
        source=card["source"] or "unknown",
        sha256=card["weights"]["sha256"],
        table=table,
        package=_INSTALL[name],
        program=_PROGRAMS[name].format(
            file=files[0], features=_in_python(features)
        ),
        inputs=readme.specs_of(exported.token_inputs),
        outputs=readme.specs_of(exported.numbers),
        max_seq_length=card["encoding"]["max_seq_length"],
        do_lower_case=card["encoding"]["do_lower_case"],
        strip_accents=card["encoding"]["strip_accents"],
    )


def _in_python(features: Mapping[str, np.ndarray]) -> str:
    """Returns arrays as the Python source of a dict."""
    lines = [
        f'    "{name}": np.array({values.tolist()}, np.int32),'
        for name, values in features.items()
    ]
    return "\n".join(["{", *lines, "}"])
