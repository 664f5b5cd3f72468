"""TPUStrategy without a TPU: the graph that it makes of a step, for others.

`tf.distribute.TPUStrategy` writes a step down as a graph, in Python; a TPU is
only needed to run it. Here it is told of chips that are not there, and keeps
its variables on CPUs, so that they can be made, read and restored. From the
graph that it wrote, `replica_function` takes the part of a replica, which XLA
can lower, or of all of them, which a CPU can run.

The strategy is TensorFlow's own, and so is the way through it: how replicas
sum and gather, where variables are written, what it refuses.
"""

import dataclasses
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.compat.v1 import AttrValue, GraphDef, NodeDef

# They stand around the replicas' part, and compute nothing.
_AROUND = ("TPUReplicateMetadata", "TPUCompilationResult")


class _Chip(NamedTuple):
    name: str


class _Resolver(tf.distribute.cluster_resolver.ClusterResolver):
    """Says that this machine has so many chips."""

    def __init__(self, chips: int):
        self._chips = chips

    def cluster_spec(self):
        return None

    def master(self, *args, **kwargs) -> str:
        return ""

    def num_accelerators(self, *args, **kwargs) -> dict[str, int]:
        return {"TPU": self._chips}

    def get_tpu_system_metadata(self) -> tf.tpu.experimental.TPUSystemMetadata:
        names = (_device("TPU", number) for number in range(self._chips))
        return tf.tpu.experimental.TPUSystemMetadata(
            num_cores=self._chips,
            num_hosts=1,
            num_of_cores_per_host=self._chips,
            topology=None,
            devices=tuple(map(_Chip, names)),
        )


class _Assignment(tf.tpu.experimental.DeviceAssignment):
    """Gives each replica a CPU, where its variables go."""

    def tpu_device(self, replica=0, logical_core=0, job=None) -> str:
        return _device("CPU", replica)

    def host_device(self, replica=0, logical_core=0, job=None) -> str:
        return _device("CPU", 0)


def _device(kind: str, number: int) -> str:
    return f"/job:localhost/replica:0/task:0/device:{kind}:{number}"


def traceable_strategy(replicas: int = 1) -> tf.distribute.TPUStrategy:
    """A strategy under which steps can be traced, but not run.

    Args:
      replicas: How many chips; as many CPU devices have to be there.
    """
    places = np.array([[number, 0, 0, 0] for number in range(replicas)])
    topology = tf.tpu.experimental.Topology(
        mesh_shape=[replicas, 1, 1, 1], device_coordinates=places[np.newaxis]
    )
    strategy = tf.distribute.TPUStrategy(
        _Resolver(replicas), _Assignment(topology, places[:, np.newaxis])
    )
    # One handle for the variables of all replicas: XLA asks for a single one.
    strategy._enable_packed_variable_in_eager_mode = False
    return strategy


def replica_function(
    traced: tf.types.experimental.ConcreteFunction,
    *,
    replicas: int = 1,
    chips: int = 1,
) -> tuple[Callable[..., Any], list[tf.TensorSpec]]:
    """What replicas do in a function that `traceable_strategy` traced.

    Args:
      traced: It calls `strategy.run`, and returns tensors of one replica.
      replicas: The first so many, one beside the other on one machine. Each
        writes its own variables.
      chips: On how many chips the result is to run: sums are over all of
        them, by collective operations.

    Returns:
      A function for the inside of a `tf.function`, which gives what `traced`
      gives, of the first replica; and what it takes, the batches of all.
    """
    graph = traced.graph.as_graph_def()
    kinds = {node.name: node.op for node in graph.node}
    places = [_Place(n, replicas, chips, kinds) for n in range(replicas)]
    part = GraphDef(versions=graph.versions, library=graph.library)
    for place in places:
        for node in graph.node:
            if node.op not in (*_AROUND, "Placeholder"):
                part.node.extend(place.nodes(node))
    asked = {_node_of(name) for node in part.node for name in node.input}
    captured = {inner.name: outer for outer, inner in traced.graph.captures}
    arguments = [t for t in traced.inputs if t.name not in captured]
    outputs = [places[0].name(tensor.name) for tensor in traced.outputs]

    def run(*values):
        here = tf.compat.v1.get_default_graph()
        given = {t.name: v for t, v in zip(arguments, values, strict=True)}
        taken = {
            t.name: given[t.name]
            if t.name in given
            else here.capture(captured[t.name])
            for t in traced.inputs
            if t.op.name in asked
        }
        found = tf.graph_util.import_graph_def(part, taken, outputs, name="")
        return tf.nest.pack_sequence_as(traced.structured_outputs, found)

    return run, [tf.TensorSpec.from_tensor(t) for t in arguments]


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where a replica's nodes go.

    Attributes:
      replica: Its number.
      replicas: How many there are beside each other.
      chips: How many run them.
      kinds: The operations of the strategy's graph, by the nodes' names.
    """

    replica: int
    replicas: int
    chips: int
    kinds: Mapping[str, str]

    def nodes(self, node: NodeDef) -> list[NodeDef]:
        """What stands here for a node of the strategy's graph."""
        name = self.name(node.name)
        if node.op == "CrossReplicaSum":
            return self._sum(name, node.input[0], node.attr["T"])
        if node.op == "TPUReplicatedInput":
            value = self.name(node.input[self.replica])
            return [_node(name, "Identity", [value], T=node.attr["T"])]
        if node.op == "TPUReplicatedOutput":
            value = self.name(node.input[0])
            return [_node(name, "Identity", [value], T=node.attr["T"])]
        inputs = [
            self.name(tensor)
            for tensor in node.input
            if self.kinds[_node_of(tensor)] not in _AROUND
        ]
        # What begins with "_" are marks for TensorFlow's passes for TPUs.
        kept = {k: v for k, v in node.attr.items() if not k.startswith("_")}
        return [_node(name, node.op, inputs, **kept)]

    def name(self, tensor: str) -> str:
        """What a node, a tensor or a control dependency is called here."""
        node = _node_of(tensor)
        kind = self.kinds[node]
        if kind == "Placeholder":
            return tensor
        prefix = "^" if tensor.startswith("^") else ""
        _, colon, number = tensor.partition(":")
        if kind == "TPUReplicatedOutput":  # One for each replica, there.
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
        # Which chips belong together, and which of their operations.
        constants = [
            _constant(f"{name}/chips", self.chips),
            _constant(f"{name}/group", 1),
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
    """The node that a tensor or a control dependency comes from."""
    return tensor.removeprefix("^").partition(":")[0]


def _node(
    name: str, kind: str, inputs: Iterable[str] = (), **attributes: AttrValue
) -> NodeDef:
    return NodeDef(name=name, op=kind, input=inputs, attr=attributes)


def _constant(name: str, value: int) -> NodeDef:
    content = tf.make_tensor_proto(value, tf.int32)
    return _node(
        name,
        "Const",
        dtype=AttrValue(type=content.dtype),
        value=AttrValue(tensor=content),
    )
