"""Compiles a step of the scripts for a TPU, on a machine without one.

XLA lowers the step to StableHLO; libtpu contains the compiler that runs on a
TPU's host, which JAX can call without chips. Three changes turn the program
into the one that TensorFlow passes to the compiler on a TPU:

- Dropout's random bits: TensorFlow uses Philox on CPUs and GPUs, and the chip's
  generator on a TPU (`DefaultRngAlgForDeviceType` in tf2xla). Philox there
  takes a hundred times the memory of its result.
- Weights and moments are stored in place of the old ones, not twice.
- Sums over chips have no channel, as a program without partitions has none.
"""

import dataclasses
import functools
import math
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# Set before importing JAX: it must not look for a TPU, nor libtpu for metadata.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "true")

import keras
import numpy as np
import tensorflow as tf
import tpu_graph
from jax._src.interpreters import mlir
from jax.errors import JaxRuntimeError
from jax.experimental import topologies
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jaxlib import _jax, xla_client

from bert_tf import BertConfig
from bert_tf.data import batching, pipeline, records
from bert_tf.data.sequence_packing import SequencePacking
from bert_tf.jobs import trainings
from bert_tf.kinds.classification.task import (
    ClassificationTask,
    MultipleChoiceTask,
)
from bert_tf.kinds.pretraining.task import PretrainingTask
from bert_tf.kinds.spans.squad_files import SpanEncoding
from bert_tf.kinds.spans.task import SpanTask
from bert_tf.kinds.tags.conll_files import TaggingEncoding
from bert_tf.kinds.tags.task import TaggingTask
from bert_tf.tasks.encoding import Encoding
from bert_tf.training.estimator import Estimator
from bert_tf.training.settings import TrainingConfig

# The number of chips that share a batch.
CHIPS = 4
# Chip -> a slice of four chips as libtpu names it, and options.
SLICES = {
    # TensorFlow uses the two cores of a v4 as one device, "megacore".
    "v4": ("v4:2x2x1", {"chip_config_name": "megacore"}),
    "v5e": ("v5e:2x2", {}),
    "v5p": ("v5p:2x2x1", {}),
    "v6e": ("v6e:2x2", {}),
}
# Of BERT's uncased English models.
VOCAB_SIZE = 30522
# CoNLL-2003's tags in IOB2.
TAGS = ("O", *(f"{p}-{k}" for k in ("LOC", "MISC", "ORG", "PER") for p in "BI"))


# The compiler.


class OutOfMemoryError(Exception):
    """The compiler found no program that fits into the chip's memory."""


def lower(function: Callable, specs: Sequence[tf.TensorSpec]) -> str:
    """Returns the StableHLO of a function of tensors, which may use variables.

    Raises:
      ValueError: A shape is unknown, or XLA does not support an operation.
    """
    unknown = [spec for spec in specs if not spec.shape.is_fully_defined()]
    if unknown:
        raise ValueError(f"the shape of {unknown[0]} is not known")
    compiled = tf.function(function, jit_compile=True, autograph=False)
    text = compiled.experimental_get_compiler_ir(*specs)(stage="stablehlo")
    dynamic = re.search(r"tensor<[^>]*\?[^>]*>", text)
    if dynamic:
        raise ValueError(f"the shape of {dynamic[0]} depends on the data")
    return text


def compile_for(chip: str, text: str, chips: int = 1) -> dict[str, int]:
    """Compiles the result of `lower` for some chips of a kind.

    Returns:
      The bytes that the program takes of a chip: "arguments" (weights, moments
      and the batch), "temporaries" (activations, gradients ...), "outputs"
      that are not stored in an argument, and "program", the code.

    Raises:
      OutOfMemoryError: The chip has too little memory.
      JaxRuntimeError: The compiler rejects the program for another reason.
    """
    name, more = SLICES[chip]
    topology = topologies.get_topology_desc(name, platform="tpu", **more)
    devices = tuple(topology.devices[:chips])
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
            if not str(error).startswith("RESOURCE_EXHAUSTED"):
                raise
            raise OutOfMemoryError(str(error)) from error
    memory = executable.get_compiled_memory_stats()
    return {
        "arguments": memory.argument_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
        "outputs": memory.output_size_in_bytes - memory.alias_size_in_bytes,
        "program": memory.generated_code_size_in_bytes,
    }


def available_memory(chip: str) -> int:
    """Returns the bytes for programs, from the error about a large program."""

    def large(seed):
        return tf.random.stateless_uniform([2**18, 2**18], seed)

    try:
        compile_for(chip, lower(large, [tf.TensorSpec([2], tf.int32)]))
    except OutOfMemoryError as error:
        found = re.search(r"available HBM \(([\d.]+)G\)", str(error))
        return round(float(found[1]) * 2**30)
    raise AssertionError(f"{chip} has 256 GiB or more")


def _adapt(module: ir.Module) -> None:
    """Makes the three changes of the module's docstring."""
    operations = []

    def note(operation):
        operations.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(note)
    for operation in operations:
        if operation.name == "mhlo.copy":
            # The TPU compiler does not know this operation.
            operation.results[0].replace_all_uses_with(operation.operands[0])
            operation.erase()
        elif operation.name == "stablehlo.rng_bit_generator":
            _use_own_generator(operation)
        elif operation.name == "stablehlo.all_reduce":
            del operation.attributes["channel_handle"]
    _alias(module)
    for name in list(module.operation.attributes):
        if str(name).startswith("mhlo."):
            del module.operation.attributes[name]


def _use_own_generator(philox) -> None:
    """Replaces Philox by the chip's generator of random bits.

    The chip's generator keeps two of Philox's three numbers of state.
    """

    def cut(value, start, end):
        bounds = ([start], [end], [1])
        return stablehlo.slice(value, *map(ir.DenseI64ArrayAttr.get, bounds))

    state, bits = philox.results
    with ir.InsertionPoint(philox), philox.location:
        before = cut(philox.operands[0], 0, 2)
        own = stablehlo.RngBitGeneratorOp(
            before.type,
            bits.type,
            stablehlo.RngAlgorithmAttr.get("DEFAULT"),
            before,
        )
        rest = cut(philox.operands[0], 2, state.type.shape[0])
        after = stablehlo.concatenate([own.results[0], rest], dimension=0)
    state.replace_all_uses_with(after)
    bits.replace_all_uses_with(own.results[1])
    philox.operation.erase()


def _alias(module: ir.Module) -> None:
    """Declares which output is stored in which argument."""
    (main,) = (f for f in module.body.operations if f.name.value == "main")
    attributes = [ir.DictAttr.get() for _ in main.type.inputs]
    number = ir.IntegerType.get_signless(32)
    for entry in module.operation.attributes["mhlo.input_output_alias"]:
        argument = int(entry["alias"]["parameter_number"])
        output = ir.IntegerAttr.get(number, entry["output_index"][0])
        attributes[argument] = ir.DictAttr.get({"tf.aliasing_output": output})
    main.arg_attrs = ir.ArrayAttr.get(attributes)


# The steps.


def _pretraining(config: BertConfig, length: int) -> PretrainingTask:
    # 15 % are masked, as in `create_pretraining_data.py`.
    return PretrainingTask(config, length, math.ceil(0.15 * length))


# No texts are tokenized.
_TEXTS = (), True, None

# The tasks of the scripts; `packed_` is --pack_sequences.
TASKS = {
    "pretraining": _pretraining,
    "packed_pretraining": _pretraining,
    "classification": lambda config, length, **options: ClassificationTask(
        config,
        Encoding(*_TEXTS, length, "single_label", ("no", "yes")),
        **options,
    ),
    "multiple_choice": lambda config, length, **options: MultipleChoiceTask(
        config,
        Encoding(*_TEXTS, length, "multiple_choice", tuple("0123"), 4),
        **options,
    ),
    "spans": lambda config, length, **options: SpanTask(
        config, SpanEncoding(*_TEXTS, length, max_query_length=1), **options
    ),
    "tokens": lambda config, length, **options: TaggingTask(
        config, TaggingEncoding(*_TEXTS, length, TAGS), **options
    ),
}


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of one chip: the script's task, batches and training step."""

    task: str
    # "training" or "prediction", which is evaluation too: metrics are computed
    # on the host.
    kind: str
    config: BertConfig
    max_seq_length: int  # Fixed on a TPU.
    batch_size: int  # Per chip.
    # More options of the training, and of a fine-tuning task.
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def lower(self, chips: int = 1) -> str:
        """Returns the StableHLO of one chip out of `chips`.

        One replica is traced, since several would all have variables in the
        memory of this machine. Sums are over all chips.
        """
        strategy = tpu_graph.traceable_strategy()
        config = TrainingConfig(
            train_batch_size=self.batch_size,
            eval_batch_size=self.batch_size,
            num_train_steps=10,
            **self.settings,
        )
        task = TASKS[self.task](
            self.config, self.max_seq_length, **self.options
        )
        with tempfile.TemporaryDirectory() as folder:
            estimator = Estimator(task, strategy, config, folder)
            data = self._data(task.schema, config, folder)
            if self.kind == "training":
                batches = estimator.training_batches(data)
                step = estimator.training_step().replica_step
            else:
                batches = estimator.evaluation_batches(data, self.batch_size)
                step = estimator.prediction_step
        return lower(
            *tpu_graph.replica_function(
                strategy, step, batches.element_spec, chips
            )
        )

    def _data(
        self, features: records.Schema, config: TrainingConfig, folder: str
    ) -> Callable[..., Any]:
        """Returns the function that gives batches to the estimator."""
        is_training = self.kind == "training"
        if not self.task.endswith("pretraining"):
            examples = [_examples(features, self.batch_size)]
            data = batching.in_memory(examples, features)
            padding = batching.Padding(static=True)
            if is_training:
                return trainings.training_data(data, padding, config)
            return trainings.evaluation_data(data, padding)
        path = os.path.join(folder, "records")
        examples = _examples(features, 1)
        records.write(path, records.encode_batch(features, examples))
        is_packed = self.task.startswith("packed")
        common = {
            "vocab_size": self.config.vocab_size,
            "packing": SequencePacking() if is_packed else None,
        }
        if is_training:
            return functools.partial(
                pipeline.training_dataset, [path], features, seed=0, **common
            )
        return functools.partial(
            pipeline.evaluation_dataset, [path], features, **common
        )


def _examples(features: records.Schema, count: int) -> dict[str, np.ndarray]:
    """Returns examples of ones: the values do not matter here."""
    return {
        feature.name: np.ones((count, *feature.shape), feature.dtype)
        for feature in features
    }


def memory_of(
    task: str, kind: str, model: str, length: int, chip: str, batch_size: int
) -> dict[str, Any]:
    """Compiles a step for a slice of chips, with bfloat16 activations.

    Returns:
      "memory", the result of `compile_for`, or None if the program does not
      fit, and the bytes that are "available" to programs.
    """
    keras.config.set_dtype_policy("mixed_bfloat16")
    config = BertConfig.from_name(model, VOCAB_SIZE)
    text = Step(task, kind, config, length, batch_size).lower(CHIPS)
    available = available_memory(chip)
    try:
        memory = compile_for(chip, text, CHIPS)
    except OutOfMemoryError:
        memory = None
    return {"memory": memory, "available": available}
