"""Converts exports for ONNX Runtime and LiteRT, and compares the results.

These runtimes cannot tokenize strings, so only the signature `tokens` is
converted: ids in, probabilities, logits or embeddings out. Their packages are
large, so they are imported where they are used.
"""

import logging
import math
import os
import pathlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.base import files
from bert_tf.errors import in_file, reason, tensorflow_required
from bert_tf.serving.export import (
    EXTRA,
    MODEL_CARD,
    MODEL_FILE,
    silenced,
    specs_of,
)
from bert_tf.serving.served import ServedMaskedLM
from bert_tf.tokenization.vocabulary_file import load_vocab

Arrays = dict[str, np.ndarray]

# Supported by ONNX Runtime 1.14 (2023) and newer.
OPSET = 18

# The largest difference of a float32 model; see `difference`.
TOLERANCE = 1e-3


class Export(NamedTuple):
    """One version of an export.

    Attributes:
      path: The folder.
      card: The model card.
      model: The result of `tf.saved_model.load`.
      numbers: The signature `tokens` without its outputs of strings.
    """

    path: str
    card: Mapping[str, Any]
    model: Any
    numbers: tf.types.experimental.PolymorphicFunction

    @property
    def inputs(self) -> dict[str, tf.TensorSpec]:
        """The inputs of `numbers`: int32 [None, ..., None]."""
        return self.numbers.input_signature[0]

    def assets(self) -> dict[str, bytes]:
        """Returns the vocabulary, the labels and the model card, by name."""
        folder = os.path.join(self.path, "assets")
        paths = [os.path.join(folder, name) for name in files.listdir(folder)]
        contents = {}
        for path in (*paths, os.path.join(self.path, EXTRA, MODEL_CARD)):
            with files.open_read(path) as file:
                contents[os.path.basename(path)] = file.read()
        return contents

    def run(self, batches: Sequence[Arrays]) -> list[Arrays]:
        return [
            {name: value.numpy() for name, value in self.numbers(batch).items()}
            for batch in batches
        ]


def open_export(export_dir: str) -> Export:
    """Opens an export that other runtimes support.

    Args:
      export_dir: The folder of one version, or of all versions, of which the
        newest is opened.

    Raises:
      InputError: There is no export, it is damaged, or other runtimes do not
        support it.
    """
    with tensorflow_required("An export"):
        import tensorflow_text  # noqa: F401  Registers the tokenizer's op.

    path = _version_in(export_dir)
    card = files.read_json(os.path.join(path, EXTRA, MODEL_CARD))
    problem = ""
    if card["dtype_policy"] != "float32":
        problem = (
            f"the precision is {card['dtype_policy']}, but other runtimes need "
            "an export in float32. Export the model again."
        )
    elif card["kind"] == ServedMaskedLM.kind:
        problem = (
            "a masked language model answers with words, but other runtimes "
            "have no strings."
        )
    if problem:
        raise in_file(path, problem)
    try:
        model = tf.saved_model.load(path)
    except (OSError, ValueError, LookupError, tf.errors.OpError) as error:
        problem = f"the SavedModel cannot be loaded: {reason(error)}."
        raise in_file(path, f"{problem} Export the model again.") from error
    return Export(path, card, model, _numbers(model.signatures["tokens"]))


def _version_in(export_dir: str) -> str:
    """Returns the folder itself, or its version with the highest number."""
    # Some file systems list folders with a trailing slash.
    names = (name.rstrip("/") for name in files.listdir(export_dir))
    versions = sorted(filter(str.isdecimal, names), key=int, reverse=True)
    for path in ("", *versions):
        folder = os.path.join(export_dir, path) if path else export_dir
        if files.exists(os.path.join(folder, MODEL_FILE)):
            return folder
    raise in_file(
        export_dir,
        f"there is no {MODEL_FILE} and no version of an export. Pass the "
        "folder that an export wrote, or one version in it.",
    )


def _numbers(tokens: Any) -> tf.types.experimental.PolymorphicFunction:
    """Returns the signature `tokens` without its outputs of strings."""
    # A SavedModel does not keep the order of inputs.
    inputs = dict(sorted(tokens.structured_input_signature[1].items()))

    @tf.function(input_signature=[inputs], autograph=False)
    def numbers(features):
        answer = sorted(tokens(**features).items())
        return {name: x for name, x in answer if x.dtype != tf.string}

    return numbers


# Conversion.


def _to_onnx(export: Export, int8: bool) -> dict[str, bytes]:
    import tf2onnx

    model, _ = tf2onnx.convert.from_function(
        export.numbers,
        input_signature=[],
        opset=OPSET,
        custom_rewriter=[_hide_sizes_of_one],
    )
    models = {"model.onnx": model.SerializeToString()}
    if int8:
        models["model.int8.onnx"] = _quantized(model)
    return models


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


def _quantized(model: Any) -> bytes:
    """Quantizes weights to 8 bits; activations are quantized at run time."""
    from onnxruntime import quantization

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "model.onnx")
        quantization.quantize_dynamic(
            model,
            path,
            weight_type=quantization.QuantType.QInt8,
            # Halves the error compared with one scale for all columns.
            per_channel=True,
        )
        return path.read_bytes()


def _run_onnx(content: bytes, batches: Sequence[Arrays]) -> list[Arrays]:
    import onnxruntime

    session = onnxruntime.InferenceSession(
        content, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return [
        dict(zip(names, session.run(names, batch), strict=True))
        for batch in batches
    ]


def _to_litert(export: Export, int8: bool) -> dict[str, bytes]:
    function = export.numbers.get_concrete_function()

    def content(*optimizations):
        converter = tf.lite.TFLiteConverter.from_concrete_functions(
            [function], export.model
        )
        converter.optimizations = [*optimizations]
        return converter.convert()

    models = {"model.tflite": content()}
    if int8:
        # LiteRT calls this "dynamic range quantization".
        models["model.int8.tflite"] = content(tf.lite.Optimize.DEFAULT)
    return models


def _run_litert(content: bytes, batches: Sequence[Arrays]) -> list[Arrays]:
    from ai_edge_litert.interpreter import Interpreter

    # The interpreter must live as long as its signature is used.
    interpreter = Interpreter(model_content=content, num_threads=os.cpu_count())
    signature = interpreter.get_signature_runner()
    return [signature(**batch) for batch in batches]


class Runtime(NamedTuple):
    """A runtime and its format.

    Attributes:
      title: The name of the runtime.
      package: The package that runs a model.
      program: A Python program that runs a model, for `str.format`.
      to_models: Converts an export to the contents of files by name: the
        float32 model, then, if True is passed, the model with 8-bit weights.
      run: Runs a model on batches.
    """

    title: str
    package: str
    program: str
    to_models: Callable[[Export, bool], dict[str, bytes]]
    run: Callable[[bytes, Sequence[Arrays]], list[Arrays]]


RUNTIMES = {
    "onnx": Runtime(
        "ONNX Runtime",
        "onnxruntime",
        """\
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("{file}")
names = [output.name for output in session.get_outputs()]
features = {features}
answer = dict(zip(names, session.run(names, features)))""",
        _to_onnx,
        _run_onnx,
    ),
    "litert": Runtime(
        "LiteRT",
        "ai-edge-litert",
        """\
import numpy as np
from ai_edge_litert.interpreter import Interpreter

# Keep the interpreter as long as you use its signature.
interpreter = Interpreter("{file}")
model = interpreter.get_signature_runner()
features = {features}
answer = model(**features)""",
        _to_litert,
        _run_litert,
    ),
}


def convert(export: Export, runtime: Runtime, int8: bool) -> dict[str, bytes]:
    """Returns `Runtime.to_models`, without what converters log."""
    with silenced(logging.WARNING):
        return runtime.to_models(export, int8)


# Comparison of a converted model with the export.


def random_rows(export: Export) -> list[Arrays]:
    """Returns batches of `Export.inputs`, of random words of the vocabulary.

    The first has one short row, the last some of the maximum length.
    """
    generator = np.random.default_rng(0)
    words = [*load_vocab(os.path.join(export.path, "assets", "vocab.txt"))]
    tokenize = export.model.signatures["tokenize"]
    batches = []
    for num_texts, num_words in ((1, 3), (5, 20), (2, 600)):
        texts = {}
        for name, spec in tokenize.structured_input_signature[1].items():
            shape = (num_texts, *spec.shape[1:], num_words)
            chosen = generator.choice(words, shape)
            texts[name] = tf.strings.reduce_join(chosen, -1, separator=" ")
        rows = tokenize(**texts)
        # A text can have several rows: [B, R, S].
        batches.append(
            {
                name: tf.reshape(
                    rows[name], [-1, *spec.shape[1:-1], rows[name].shape[-1]]
                ).numpy()
                for name, spec in export.inputs.items()
            }
        )
    return batches


def difference(expected: Sequence[Arrays], found: Sequence[Arrays]) -> float:
    """Returns the largest difference between the outputs of two models.

    For floats it is their distance, divided by the output's largest absolute
    value if that is above 1; for integers, such as tags, the unequal share.
    """
    differences = []
    for name in expected[0]:
        one, other = (
            np.concatenate([answer[name].ravel() for answer in answers])
            for answers in (expected, found)
        )
        if one.shape != other.shape:
            return math.inf
        off = np.mean(one != other)
        if one.dtype.kind == "f":
            off = np.abs(one - other).max() / max(1.0, np.abs(one).max())
        differences.append(off)
    return float(np.max(differences))  # NaN if one is.


# The README of the converted models, filled in by str.format.
_TEMPLATE = """\
# {name}: {kind}, for {title}

Converted by bert_tf from the export that `model_card.json` describes.

{table}

After `pip install {package} numpy`, run this program here:

```python
{program}
```

| inputs | outputs |
|---|---|
| {inputs} | {outputs} |

In shapes, the first None is the number of rows, at least 1; a second None is
the length of the longest row, at most {max_seq_length} in training.
Classes and tags are numbered by the lines of `labels.txt`, from 0, if there is
one.

The input is `[CLS] text [SEP]`, or `[CLS] first [SEP] second [SEP]`. Ids are
lines of `vocab.txt`, from 0; `input_mask` is 1 for tokens and 0 for padding;
`segment_ids` are 1 in the second text. Ids without TensorFlow:

```python
from bert_tf import FullTokenizer

tokenizer = FullTokenizer(
    "vocab.txt", do_lower_case={do_lower_case}, strip_accents={strip_accents}
)
ids = tokenizer.encode("...")
```
"""


def readme(
    export: Export, runtime: Runtime, file: str, row: Arrays, table: str
) -> str:
    """Returns the README of converted models, in Markdown.

    Its program passes `row`, a batch, to the model `file`; `table` has the
    models' sizes and differences.
    """
    features = ",\n".join(
        f'    "{name}": np.array({values.tolist()}, np.int32)'
        for name, values in row.items()
    )
    outputs = export.numbers.get_concrete_function().structured_outputs
    return _TEMPLATE.format(
        **export.card["encoding"],
        name=export.card["name"],
        kind=export.card["kind"],
        title=runtime.title,
        table=table,
        package=runtime.package,
        program=runtime.program.format(
            file=file, features=f"{{\n{features},\n}}"
        ),
        inputs=specs_of(export.inputs),
        outputs=specs_of(outputs),
    )
