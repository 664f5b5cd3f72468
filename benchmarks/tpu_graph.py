"""The graph that TPUStrategy makes of a step, on a machine without a TPU.

`tf.distribute.TPUStrategy` traces a step in Python; a TPU is needed only to run
it. Here the strategy sees simulated chips and keeps its variables on CPUs, so
that they can be created, read and restored. `replica_function` takes the part
of one replica, for XLA, or of all replicas, for a CPU, from the graph.
TensorFlow's code decides how replicas reduce and gather and where variables are
updated.
"""

import dataclasses
import types
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.compat.v1 import AttrValue, GraphDef, NodeDef

# Nodes around the part of the replicas that compute nothing.
_AROUND = ("TPUReplicateMetadata", "TPUCompilationResult")


class _Resolver(tf.distribute.cluster_resolver.ClusterResolver):
    """Reports a number of chips on this machine."""

    def __init__(self, chips: int):
        self._chips = chips

    def cluster_spec(self):
        return None

    def master(self, *args, **kwargs) -> str:
        return ""

    def num_accelerators(self, *args, **kwargs) -> dict[str, int]:
        return {"TPU": self._chips}

    def get_tpu_system_metadata(self) -> tf.tpu.experimental.TPUSystemMetadata:
        chips = (
            types.SimpleNamespace(name=_device("TPU", number))
            for number in range(self._chips)
        )
        return tf.tpu.experimental.TPUSystemMetadata(
            num_cores=self._chips,
            num_hosts=1,
            num_of_cores_per_host=self._chips,
            topology=None,
            devices=tuple(chips),
        )


class _Assignment(tf.tpu.experimental.DeviceAssignment):
    """Assigns the variables of each replica to a CPU."""

    def tpu_device(self, replica=0, logical_core=0, job=None) -> str:
        return _device("CPU", replica)

    def host_device(self, replica=0, logical_core=0, job=None) -> str:
        return _device("CPU", 0)


def _device(kind: str, number: int) -> str:
    return f"/job:localhost/replica:0/task:0/device:{kind}:{number}"


def traceable_strategy(replicas: int = 1) -> tf.distribute.TPUStrategy:
    """Returns a strategy under which steps can be traced, but not run.

    There must be as many CPU devices as replicas.
    """
    places = np.array([[number, 0, 0, 0] for number in range(replicas)])
    topology = tf.tpu.experimental.Topology(
        mesh_shape=[replicas, 1, 1, 1], device_coordinates=places[np.newaxis]
    )
    strategy = tf.distribute.TPUStrategy(
        _Resolver(replicas), _Assignment(topology, places[:, np.newaxis])
    )
    # XLA asks for the handle of a single variable.
    strategy._enable_packed_variable_in_eager_mode = False
    return strategy


def replica_function(
    strategy: tf.distribute.TPUStrategy,
    step: Callable[[Any], Any],
    batch: Any,
    chips: int = 1,
) -> tuple[Callable[..., Any], list[tf.TensorSpec]]:
    """Returns the computation of all replicas of `strategy.run(step)`.

    Args:
      strategy: A result of `traceable_strategy`.
      step: The step of a replica.
      batch: The specification of the batches of all replicas.
      chips: The number of chips that run the result. Sums over all of them
        become collective operations.

    Returns:
      A function to call inside a `tf.function`; it returns the outputs of the
      first replica. And its arguments' types: the batches of all replicas.
    """

    @tf.function
    def trace(batch):
        return tf.nest.map_structure(
            lambda value: strategy.experimental_local_results(value)[0],
            strategy.run(step, (batch,)),
        )

    traced = trace.get_concrete_function(batch)
    replicas = strategy.num_replicas_in_sync
    graph = traced.graph.as_graph_def()
    kinds = {node.name: node.op for node in graph.node}
    places = [_Replica(n, replicas, chips, kinds) for n in range(replicas)]
    part = GraphDef(versions=graph.versions, library=graph.library)
    for place in places:
        for node in graph.node:
            if node.op not in (*_AROUND, "Placeholder"):
                part.node.extend(place.nodes(node))
    used = {_node_of(name) for node in part.node for name in node.input}
    captured = {inner.name: outer for outer, inner in traced.graph.captures}
    arguments = [t for t in traced.inputs if t.name not in captured]
    outputs = [places[0].name(tensor.name) for tensor in traced.outputs]

    def run(*values):
        here = tf.compat.v1.get_default_graph()
        given = {t.name: v for t, v in zip(arguments, values, strict=True)}
        inputs = {
            t.name: given[t.name]
            if t.name in given
            else here.capture(captured[t.name])
            for t in traced.inputs
            if t.op.name in used
        }
        found = tf.graph_util.import_graph_def(part, inputs, outputs, name="")
        return tf.nest.pack_sequence_as(traced.structured_outputs, found)

    return run, [tf.TensorSpec.from_tensor(t) for t in arguments]


@dataclasses.dataclass(frozen=True)
class _Replica:
    """Copies the nodes of the strategy's graph for one replica."""

    replica: int
    replicas: int  # The number of replicas in the graph.
    chips: int  # The number of chips that run the graph.
    kinds: Mapping[str, str]  # Node -> operation, in the strategy's graph.

    def nodes(self, node: NodeDef) -> list[NodeDef]:
        """Returns the nodes that replace a node of the strategy's graph."""
        name = self.name(node.name)
        if node.op == "CrossReplicaSum":
            return self._sum(name, node.input[0], node.attr["T"])
        if node.op in ("TPUReplicatedInput", "TPUReplicatedOutput"):
            number = self.replica if node.op == "TPUReplicatedInput" else 0
            value = self.name(node.input[number])
            return [_node(name, "Identity", [value], T=node.attr["T"])]
        inputs = [
            self.name(tensor)
            for tensor in node.input
            if self.kinds[_node_of(tensor)] not in _AROUND
        ]
        # Attributes that begin with "_" mark nodes for TensorFlow's TPU passes.
        kept = {k: v for k, v in node.attr.items() if not k.startswith("_")}
        return [_node(name, node.op, inputs, **kept)]

    def name(self, tensor: str) -> str:
        """Returns the new name of a node, tensor or control dependency."""
        node = _node_of(tensor)
        kind = self.kinds[node]
        if kind == "Placeholder":
            return tensor
        prefix = "^" if tensor.startswith("^") else ""
        _, colon, number = tensor.partition(":")
        if kind == "TPUReplicatedOutput":  # It has an output per replica.
            colon, number = colon and ":", colon and "0"
        return f"{prefix}replica_{self.replica}/{node}{colon}{number}"

    def _sum(self, name: str, value: str, kind: AttrValue) -> list[NodeDef]:
        values = [
            dataclasses.replace(self, replica=number).name(value)
            for number in range(self.replicas)
        ]
        count = AttrValue(i=self.replicas)
        if self.chips == 1:
            return [_node(name, "AddN", values, T=kind, N=count)]
        here = _node(f"{name}/here", "AddN", values, T=kind, N=count)
        constants = [
            _constant(f"{name}/chips", self.chips),
            _constant(f"{name}/group", 1),
            # All chips must use the same key for the same operation.
            _constant(f"{name}/number", zlib.crc32(name.encode()) // 2),
        ]
        everywhere = _node(
            name,
            "CollectiveReduceV2",
            [node.name for node in (here, *constants)],
            T=kind,
            merge_op=AttrValue(s=b"Add"),
            final_op=AttrValue(s=b"Id"),
        )
        return [here, *constants, everywhere]


def _node_of(tensor: str) -> str:
    """Returns the node of a tensor or a control dependency."""
    return tensor.removeprefix("^").partition(":")[0]


def _node(
    name: str, kind: str, inputs: Iterable[str] = (), **attributes: AttrValue
) -> NodeDef:
    return NodeDef(name=name, op=kind, input=inputs, attr=attributes)


def _constant(name: str, value: int) -> NodeDef:
    content = tf.make_tensor_proto(value, tf.int32)
    kind, content = AttrValue(type=content.dtype), AttrValue(tensor=content)
    return _node(name, "Const", dtype=kind, value=content)
