"""The signature `tokens` of an export, for runtimes other than TensorFlow.

ONNX and LiteRT know no strings in any form that is of use here. What they get
are the numbers: ids in, probabilities, logits, vectors out.

Their packages are large and not needed by anybody else, so they are imported
where they are used.
"""

import dataclasses
import functools
import importlib.util
import os
import pathlib
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging
from tensorflow.python.framework.convert_to_constants import (
    convert_variables_to_constants_v2,
)

from bert_tf.errors import InputError
from bert_tf.serving import quiet
from bert_tf.serving.exported import Arrays, Exported

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
_quiet = functools.partial(quiet.at_least, logging.ERROR, *_TALKERS)


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
