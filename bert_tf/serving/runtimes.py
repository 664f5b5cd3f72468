"""The signature `tokens` of an export, for runtimes other than TensorFlow.

ONNX and LiteRT know no strings in any form that is of use here. What they get
are the numbers: ids in, probabilities, logits, vectors out.

Their packages are large and not needed by anybody else, so they are imported
where they are used.
"""

import dataclasses
import functools
import importlib.util
import json
import math
import os
import pathlib
import tempfile
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging
from tensorflow.python.framework.convert_to_constants import (
    convert_variables_to_constants_v2,
)

from bert_tf.errors import InputError
from bert_tf.serving import export, readme
from bert_tf.serving.exported import Arrays, Exported, join_rows

# The signature `tokens` of an export, for runtimes other than TensorFlow.


# From a batch of `Exported.token_inputs` to `Exported.numbers`.
Run = Callable[[Mapping[str, np.ndarray]], Arrays]

# Of ONNX, with LayerNormalization's and GELU's parts as they are. Every
# ONNX Runtime since 1.14, of 2023, runs it.
OPSET = 18

# Who speaks while models are converted, beside absl; ONNX Runtime's quantizer
# does by the root logger.
_TALKERS = ("tensorflow", "tf2onnx", "root")

_LOOPS = {"While", "StatelessWhile"}

# Both formats count their bytes in 31 bits.
_MOST_BYTES = 1 << 31


@dataclasses.dataclass(frozen=True)
class Runtime:
    """A format, and what runs it.

    Attributes:
      title: What people call what runs it.
      extension: How its files end.
      packages: What has to be installed to make them and to run them.
      convert: From an export to the content of a file, float32.
      quantize: From an export and what `convert` gave to the content of a file
        of 8-bit weights.
      load: From the content of a file to what runs it.
    """

    title: str
    extension: str
    packages: tuple[str, ...]
    convert: Callable[[Exported], bytes]
    quantize: Callable[[Exported, bytes], bytes]
    load: Callable[[bytes], Run]


def require_packages(name: str) -> None:
    """Sees whether the packages of a format are installed.

    Args:
      name: A key of `RUNTIMES`.

    Raises:
      InputError: One is not.
    """
    for package in RUNTIMES[name].packages:
        if importlib.util.find_spec(package) is None:
            raise InputError(
                f"expected the packages of --format={name}. Received: no "
                f"{package}; pip install 'bert_tf[{name}]'"
            )


def require_convertible(exported: Exported) -> None:
    """Sees whether an export is one that the formats can hold.

    Raises:
      InputError: It is not.
    """
    card = exported.card
    wrong = None
    if card["dtype_policy"] != "float32":
        wrong = (
            f"one of {card['dtype_policy']}, for which they have no kernels; "
            "export it again with --mixed_precision=float32"
        )
    elif card["kind"] == "masked language model":
        wrong = "a masked language model, which answers with words"
    elif exported.ops & _LOOPS:
        wrong = "one with LSTMs, whose loops cannot be converted"
    elif card["parameters"] * np.float32().nbytes >= _MOST_BYTES:
        wrong = f"one of {card['parameters']:,} weights, too many for a file"
    if wrong:
        raise InputError(
            "expected an export that ONNX and LiteRT can hold. Received: "
            f"{exported.path}, {wrong}"
        )


# Keeps from users what converters tell those who write converters.
_quiet = functools.partial(export.at_least, logging.ERROR, *_TALKERS)


@_quiet()
def _to_onnx(exported: Exported) -> bytes:
    """An ONNX model of `OPSET`, batch and length unknown."""
    import tf2onnx

    model, _ = tf2onnx.convert.from_function(
        _constant_function(exported),
        input_signature=list(exported.token_inputs.values()),
        opset=OPSET,
        custom_op_handlers={"Erfc": (_erfc_in_onnx, [])},
    )
    return model.SerializeToString()


def _erfc_in_onnx(graph: Any, node: Any, name: str, arguments: list) -> None:
    """erfc(x), which is in every erf GELU, as 1 - erf(x).

    Far out on the left erfc is next to nothing, and what is left of it then is
    a rounding error of 1: no more than that in a GELU of numbers that occur.
    """
    del arguments
    node.type = "Erf"
    [output] = node.output
    one = graph.make_const(f"{name}/one", np.float32(1)).output[0]
    graph.insert_new_node_on_output("Sub", output, inputs=[one, output])


@_quiet()
def _to_onnx_int8(exported: Exported, content: bytes) -> bytes:
    """Weights of matrix products and embeddings in 8 bits.

    What is multiplied with them is brought to 8 bits as well while it runs.
    """
    del exported
    import onnx
    from onnxruntime import quantization

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.onnx")
        quantization.quantize_dynamic(
            onnx.load_from_string(content),
            path,
            weight_type=quantization.QuantType.QInt8,
            # A scale for each column: half of the error of one for all.
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
def _to_litert(exported: Exported) -> bytes:
    """A LiteRT model of one signature, batch and length unknown."""
    return _litert_converter(exported).convert()


@_quiet()
def _to_litert_int8(exported: Exported, content: bytes) -> bytes:
    """Weights in 8 bits ("dynamic range quantization")."""
    del content
    converter = _litert_converter(exported)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    return converter.convert()


def _litert_converter(exported: Exported) -> Any:
    root = tf.Module()
    root.model = exported.model
    function = tf.function(lambda **features: _numbers(exported, features))
    return tf.lite.TFLiteConverter.from_concrete_functions(
        [function.get_concrete_function(**exported.token_inputs)], root
    )


def _run_litert(content: bytes) -> Run:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=content, num_threads=os.cpu_count())
    signature = interpreter.get_signature_runner()

    def run(features: Mapping[str, np.ndarray]) -> Arrays:
        return signature(**features)

    return run


def _numbers(
    exported: Exported, features: Mapping[str, tf.Tensor]
) -> dict[str, tf.Tensor]:
    """What is no string of what the signature `tokens` gives."""
    answer = exported.model.signatures["tokens"](**features)
    return {name: answer[name] for name in exported.numbers}


def _constant_function(exported: Exported) -> Callable:
    """`_numbers` as a graph of constants, with nothing of a table in it.

    TensorFlow has all outputs of a function wait for the tables that its
    strings are looked up in, which ONNX has none of.
    """
    specs = exported.token_inputs
    frozen = convert_variables_to_constants_v2(
        tf.function(
            lambda **features: _numbers(exported, features)
        ).get_concrete_function(**specs)
    )
    graph = frozen.graph.as_graph_def()
    for node in graph.node:
        node.input[:] = [name for name in node.input if name[0] != "^"]
    places = [output.name for output in frozen.outputs]
    graph = tf.compat.v1.graph_util.extract_sub_graph(
        graph, [output.op.name for output in frozen.outputs]
    )

    @tf.function
    def function(*features):
        given = zip(specs, features, strict=True)
        values = tf.graph_util.import_graph_def(
            graph,
            {f"{name}:0": value for name, value in given},
            places,
            name="",
        )
        # A graph has the values of a dict in the order of its keys.
        return dict(zip(exported.numbers, values, strict=True))

    return function


RUNTIMES = {
    "onnx": Runtime(
        "ONNX Runtime",
        ".onnx",
        ("onnx", "onnxruntime", "tf2onnx"),
        _to_onnx,
        _to_onnx_int8,
        _run_onnx,
    ),
    "litert": Runtime(
        "LiteRT",
        ".tflite",
        ("ai_edge_litert",),
        _to_litert,
        _to_litert_int8,
        _run_litert,
    ),
}


# What a converted model answers, beside what the export itself does.


# By how much a float32 model may be off: of numbers up to 1 so much, of larger
# ones, logits for example, so much of the largest.
TOLERANCE = 1e-4
# A class or a tag may change where two are equally likely.
MOST_CHANGED = 1e-3

_ROWS_AT_A_TIME = 32
# Batches of random ids: rows, and places as a share of the most there can be.
_SHAPES = ((1, 0.0), (1, 1.0), (2, 0.1), (7, 0.3), (5, 0.7), (3, 1.0))

# From rows of any number to the answers to all of them, in their order.
Ask = Callable[[Mapping[str, np.ndarray]], Arrays]


class Measured(NamedTuple):
    """What a model said.

    Attributes:
      answers: To each question, in the order in which they were asked.
      scores: How good it was, if it was scored.
    """

    answers: list[Arrays]
    scores: dict[str, float]


class Difference(NamedTuple):
    """By how much two models differ.

    Attributes:
      largest: Of two floats; infinite where shapes differ or one is none.
      relative: The same, of outputs whose largest number is above 1 divided by
        that.
      output: Where that is.
      changed: The share of whole numbers and booleans that are not the same,
        of the output with most of them.
    """

    largest: float
    relative: float
    output: str
    changed: float

    @property
    def is_rounding(self) -> bool:
        """Whether both compute the same."""
        return self.relative <= TOLERANCE and self.changed <= MOST_CHANGED


def random_features(exported: Exported, seed: int = 0) -> list[Arrays]:
    """Batches of several sizes and lengths, of ids out of the vocabulary.

    Rows are of many lengths, one piece at least, with padding behind.

    Returns:
      Dicts of `Exported.token_inputs`, int32 [b, ..., S].
    """
    draw = np.random.default_rng(seed)
    most = exported.card["encoding"]["max_seq_length"]
    inner = exported.token_inputs["input_ids"].shape[1:-1]
    batches = []
    for num_rows, share in _SHAPES:
        length = max(1, round(share * most))
        shape = (num_rows, *inner, length)
        ends = draw.integers(1, length + 1, shape[:-1])[..., np.newaxis]
        seconds = draw.integers(0, length + 1, shape[:-1])[..., np.newaxis]
        places = np.arange(length)
        is_second = (places >= seconds) & (exported.num_segments > 1)
        ids = draw.integers(0, exported.card["vocab_size"], shape)
        mask = places < ends  # [b, ..., S]
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
    """Asks a model all that it is compared by.

    Args:
      run: The model.
      batches: What to ask, as it is.
      score: What to score it by: a function that asks by itself.
    """
    answers = [run(batch) for batch in batches]

    def ask(features: Mapping[str, np.ndarray]) -> Arrays:
        answers.append(answer_rows(run, features))
        return answers[-1]

    return Measured(answers, dict(score(ask)) if score else {})


def answer_rows(run: Run, features: Mapping[str, np.ndarray]) -> Arrays:
    """What a model answers to any number of rows.

    They are asked some at a time, those of about one length together, cut to
    the longest of them.

    Args:
      run: The model.
      features: Int32 [n, ..., S], at least one row.

    Returns:
      Dict of arrays [n, ...] in the order of the rows; 0 behind what was cut.
    """
    mask = features["input_mask"]
    places = np.arange(1, mask.shape[-1] + 1)
    lengths = (mask * places).reshape(len(mask), -1).max(axis=1)
    order = np.argsort(lengths, kind="stable")
    parts = []
    for start in range(0, len(order), _ROWS_AT_A_TIME):
        rows = order[start : start + _ROWS_AT_A_TIME]
        longest = max(1, lengths[rows].max())
        parts.append(
            run({n: ids[rows, ..., :longest] for n, ids in features.items()})
        )
    places_of = np.argsort(order)
    return {n: values[places_of] for n, values in join_rows(parts).items()}


def difference(expected: Measured, found: Measured) -> Difference:
    """Compares two models that were asked the same."""
    largest, relative, output, changed = 0.0, 0.0, "", 0.0
    for name in expected.answers[0]:
        pairs = [
            (one[name], other[name])
            for one, other in zip(expected.answers, found.answers, strict=True)
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
    """Of floats of equal shapes, and the largest of the first ones."""
    if not all(np.isfinite(other).all() for _, other in pairs):
        return math.inf, 1.0
    off = max(np.abs(one - other).max(initial=0.0) for one, other in pairs)
    most = max(np.abs(one).max(initial=0.0) for one, _ in pairs)
    return float(off), float(most)


def _share_changed(pairs: _Pairs) -> float:
    num_changed = sum(np.count_nonzero(one != other) for one, other in pairs)
    return num_changed / max(1, sum(one.size for one, _ in pairs))


def cosines(expected: Measured, found: Measured) -> dict[str, float]:
    """Returns the mean and the lowest cosine similarity of two models' vectors.

    Vectors are the last axes of outputs of floats. Vectors of zeros, which
    stand for padding in the expected answers, are ignored.
    """
    similarities = np.concatenate(
        [
            _cosines(one[name], other[name])
            for one, other in zip(expected.answers, found.answers, strict=True)
            for name in one
            if one[name].dtype.kind == "f" and one[name].ndim > 1
        ]
    )
    return {
        "mean cosine": float(similarities.mean()),
        "lowest cosine": float(similarities.min()),
    }


def _cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Cosine similarities of vectors [..., W], those of zeros left out: [n]."""
    one, other = (
        values.astype(np.float64).reshape(-1, values.shape[-1])
        for values in (one, other)
    )  # [N, W]
    lengths, others = (np.linalg.norm(v, axis=1) for v in (one, other))
    products = lengths * np.maximum(others, np.finfo(np.float32).tiny)
    is_vector = lengths > 0
    return (one * other).sum(axis=1)[is_vector] / products[is_vector]


class Row(NamedTuple):
    """A line of the table.

    Attributes:
      name: The file.
      size: In bytes.
      difference: From the export; None for that itself.
      scores: As `Measured` has them.
    """

    name: str
    size: int
    difference: Difference | None
    scores: Mapping[str, float]


def table(rows: Sequence[Row]) -> str:
    """What there is to choose between: size, difference and scores.

    Args:
      rows: The export first; the others are compared with it.

    Returns:
      A table of Markdown, its columns aligned. What a score loses or gains
      stands behind it.
    """
    first = rows[0]
    cells = [["file", "MB", "largest difference", *first.scores]]
    cells += [_cells(row, first) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    return "\n".join(
        f"| {' | '.join(map(str.ljust, line, widths))} |" for line in cells
    )


def _cells(row: Row, first: Row) -> list[str]:
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


# The README beside a converted model: how to run it, and what it answers.


_SNIPPETS = {
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

# Keep the interpreter for as long as its signature is asked.
interpreter = Interpreter("{file}")
model = interpreter.get_signature_runner()
features = {features}
answer = model(**features)""",
}
_INSTALL = {"onnx": "onnxruntime", "litert": "ai-edge-litert"}


def runtime_readme(
    exported: Exported,
    name: str,
    files: Sequence[str],
    table: str,
    features: Mapping[str, np.ndarray],
    answer: Arrays,
) -> str:
    """Writes what somebody who was handed the folder needs.

    Args:
      exported: What was converted.
      name: The runtime, a key of `RUNTIMES`.
      files: The names of the models, the float32 one first.
      table: They, and what they are worth; see `comparison.table`.
      features: What `Exported.example` becomes.
      answer: What the first of the models says to it.

    Returns:
      Markdown.
    """
    card = exported.card
    snippet = _SNIPPETS[name].format(
        file=files[0], features=_in_python(features)
    )
    answers = "\n".join(
        f"{key} = {readme.in_json(values)}" for key, values in answer.items()
    )
    takes = readme.specs_of(exported.token_inputs)
    gives = readme.specs_of(exported.numbers)
    parts = [
        f"# {card['name']}: {card['kind']}, for {RUNTIMES[name].title}",
        "Made from an export of bert_tf by `convert_saved_model.py`.",
        table,
        "## Run it",
        f"```\npip install {_INSTALL[name]} numpy\n```",
        f"```python\n{snippet}\n```",
        f"answers\n\n```\n{answers}\n```\n\nto {_texts(exported)}. The last "
        "digits depend on the machine.",
        "## What it takes and gives",
        'B rows, at least one, and lengths that are those of the longest: "?".',
        f"| takes | gives |\n|---|---|\n| {takes} | {gives} |",
        _meaning(exported),
        "## From text to ids",
        _encoding(exported),
        "## Where it is from",
        f"Checkpoint: {card['source'] or 'not known'}. Weights of the export, "
        f"sha256: `{card['weights']['sha256']}`.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _in_python(features: Mapping[str, np.ndarray]) -> str:
    """Arrays as the source of a dict."""
    lines = [
        f'    "{name}": np.array({values.tolist()}, np.int32),'
        for name, values in features.items()
    ]
    return "\n".join(["{", *lines, "}"])


def _texts(exported: Exported) -> str:
    texts = {
        name: np.char.decode(values.astype(bytes), "utf-8").tolist()[0]
        for name, values in exported.example().items()
    }
    return f"`{json.dumps(texts, ensure_ascii=False)}`"


def _meaning(exported: Exported) -> str:
    if "labels.txt" not in exported.assets:
        return ""
    what = "`tag_ids` are" if "tag_ids" in exported.numbers else "Columns are"
    return f"{what} the lines of `labels.txt`, from 0."


def _encoding(exported: Exported) -> str:
    encoding = exported.card["encoding"]
    casing = ", ".join(
        f"{name}={encoding[name]}"
        for name in ("do_lower_case", "strip_accents")
    )
    text = f"""\
`[CLS] text [SEP]`, or `[CLS] first [SEP] second [SEP]`: ids are the lines of
`vocab.txt`, from 0; `input_mask` is 1 for each of them and 0 for the padding
behind; `segment_ids` are 1 from the second text on. No row was longer than
{encoding["max_seq_length"]} in training, and what is longer than the model
has positions for is an error. The export's signature `tokenize` makes all
three; ids alone, without TensorFlow:"""
    return f"""\
{textwrap.fill(text, 80, break_on_hyphens=False)}

```python
from bert_tf import FullTokenizer

tokenizer = FullTokenizer("vocab.txt", {casing})
ids = tokenizer.encode("...")
```"""
