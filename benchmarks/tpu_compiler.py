"""From a TensorFlow function to a TPU's program, on a machine without a TPU.

XLA writes the function down as StableHLO; libtpu holds the compiler that runs
on a TPU's host, and JAX can call it for chips that are not there. Three things
are put right between them, so that the compiler gets what TensorFlow would
give it on a TPU:

- Dropout's random bits. TensorFlow takes Philox on CPUs and GPUs, and on a TPU
  what the chip has (`DefaultRngAlgForDeviceType` in tf2xla); Philox there takes
  a hundred times the memory of its result.
- Which outputs are stored where an input was: weights and moments. Without it
  there would be two of each.
- Sums over chips name no channel, for a program without partitions has none.
"""

import dataclasses
import os
import re
from collections.abc import Callable, Sequence

# Before JAX is imported: it is to look for no TPU, and libtpu to ask nobody
# which one it is on.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "true")

import numpy as np
import tensorflow as tf
from jax._src.interpreters import mlir
from jax.errors import JaxRuntimeError
from jax.experimental import topologies
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jaxlib import _jax, xla_client
from tpu_chips import Chip

# What a TPU's own generator keeps of its state, of Philox's three numbers.
_STATE_SIZE = 2
_OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"
_AVAILABLE = re.compile(r"available HBM \(([\d.]+)G\)")


@dataclasses.dataclass(frozen=True)
class Memory:
    """What a program takes of a chip's memory, in bytes.

    Attributes:
      arguments: Weights, moments and the batch.
      temporaries: Activations, gradients and whatever else is in between.
      outputs: What is returned, but for what is stored in an argument.
      program: Its code.
    """

    arguments: int
    temporaries: int
    outputs: int
    program: int

    @property
    def total(self) -> int:
        return sum(dataclasses.astuple(self))


class OutOfMemoryError(Exception):
    """The compiler found no program that fits into the chip's memory."""


def lower(function: Callable, specs: Sequence[tf.TensorSpec]) -> str:
    """The StableHLO of a function that XLA can compile.

    Args:
      function: Of tensors; it may read and write variables.
      specs: What it takes.

    Raises:
      ValueError: A shape is not known, or XLA has no such operation.
    """
    unknown = [spec for spec in specs if not spec.shape.is_fully_defined()]
    if unknown:
        raise ValueError(
            f"expected shapes that are known. Received: {unknown[0]}"
        )
    compiled = tf.function(function, jit_compile=True, autograph=False)
    text = compiled.experimental_get_compiler_ir(*specs)(stage="stablehlo")
    dynamic = re.search(r"tensor<[^>]*\?[^>]*>", text)
    if dynamic:
        raise ValueError(
            "expected a program whose shapes are known. Received: one with "
            f"{dynamic[0]}"
        )
    return text


def compile_for(chip: Chip, text: str, chips: int = 1) -> Memory:
    """Compiles a program for some chips, all with the same part.

    Args:
      chip: Their kind.
      text: What `lower` gave.
      chips: How many, up to four.

    Raises:
      OutOfMemoryError: The chip has too little memory.
      JaxRuntimeError: The compiler refuses it for another reason.
    """
    slice_ = topologies.get_topology_desc(
        chip.topology, platform="tpu", **dict(chip.options)
    )
    devices = tuple(slice_.devices[:chips])
    options = xla_client.CompileOptions()
    options.num_replicas = chips
    options.num_partitions = 1
    options.device_assignment = xla_client.DeviceAssignment.create(
        np.array([[device.id] for device in devices])
    )
    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        _adapt(module)
        try:
            executable = devices[0].client.compile(
                module, _jax.DeviceList(devices), options
            )
        except JaxRuntimeError as error:
            if not str(error).startswith(_OUT_OF_MEMORY):
                raise
            raise OutOfMemoryError(str(error)) from error
    memory = executable.get_compiled_memory_stats()
    return Memory(
        arguments=memory.argument_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        outputs=memory.output_size_in_bytes - memory.alias_size_in_bytes,
        program=memory.generated_code_size_in_bytes,
    )


def available_memory(chip: Chip) -> int:
    """Bytes of a chip that programs can have, as its compiler says."""

    def draw_much(seed):
        return tf.random.stateless_uniform([2**18, 2**18], seed)

    try:
        compile_for(chip, lower(draw_much, [tf.TensorSpec([2], tf.int32)]))
    except OutOfMemoryError as error:
        return round(float(_AVAILABLE.search(str(error))[1]) * 2**30)
    raise AssertionError(f"expected {chip} to have less than 256 GiB")


def _adapt(module: ir.Module) -> None:
    """Changes what TensorFlow wrote for a CPU; see the top of this file."""
    operations = []

    def note(operation):
        operations.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(note)
    for operation in operations:
        if operation.name == "mhlo.copy":
            # The value itself; the compiler of a TPU knows no such operation.
            operation.results[0].replace_all_uses_with(operation.operands[0])
            operation.erase()
        elif operation.name == "stablehlo.rng_bit_generator":
            _take_own_generator(operation)
        elif operation.name == "stablehlo.all_reduce":
            del operation.attributes["channel_handle"]
    _alias(module)
    for name in list(module.operation.attributes):
        if str(name).startswith("mhlo."):
            del module.operation.attributes[name]


def _take_own_generator(philox) -> None:
    """Puts the chip's generator of random bits in the place of Philox."""
    state, bits = philox.results
    with ir.InsertionPoint(philox), philox.location:
        before = _cut(philox.operands[0], 0, _STATE_SIZE)
        own = stablehlo.RngBitGeneratorOp(
            before.type,
            bits.type,
            stablehlo.RngAlgorithmAttr.get("DEFAULT"),
            before,
        )
        rest = _cut(philox.operands[0], _STATE_SIZE, state.type.shape[0])
        after = stablehlo.concatenate([own.results[0], rest], dimension=0)
    state.replace_all_uses_with(after)
    bits.replace_all_uses_with(own.results[1])
    philox.operation.erase()


def _cut(value, start: int, end: int):
    bounds = ([start], [end], [1])
    return stablehlo.slice(value, *map(ir.DenseI64ArrayAttr.get, bounds))


def _alias(module: ir.Module) -> None:
    """Says of each argument which output takes its place."""
    (main,) = (f for f in module.body.operations if f.name.value == "main")
    attributes = [ir.DictAttr.get() for _ in main.type.inputs]
    number = ir.IntegerType.get_signless(32)
    for entry in module.operation.attributes["mhlo.input_output_alias"]:
        argument = int(entry["alias"]["parameter_number"])
        output = ir.IntegerAttr.get(number, entry["output_index"][0])
        attributes[argument] = ir.DictAttr.get({"tf.aliasing_output": output})
    main.arg_attrs = ir.ArrayAttr.get(attributes)
