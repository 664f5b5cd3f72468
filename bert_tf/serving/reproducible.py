"""Rewrites a SavedModel so that equal models give equal files.

`saved_model.pb` and `fingerprint.pb`, as TensorFlow writes them, differ from
process to process and name local folders. They contain:

- function names that end in a counter of the process, such as
  `__inference_signature_wrapper_4493`, and numbers of captured variables;
- functions, and the entries of maps, in random order;
- table names made of the path from which the table was read;
- a random UUID.
"""

import copy
import hashlib
import os
import re
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from tensorflow.core.protobuf import fingerprint_pb2, saved_model_pb2
from tensorflow.python.saved_model import fingerprinting_utils

_COUNTER = re.compile(r"_\d+$")
# Arguments that the condition of a loop does not use: while_cond_4493___...
_UNUSED = re.compile(r"_\d+(?=___redundant_placeholder\d+$)")
_TABLE = re.compile(r"hash_table_(?P<path>.+)(?P<columns>_-?\d+_-?\d+)")


def make_reproducible(folder: str) -> None:
    """Rewrites `saved_model.pb` and `fingerprint.pb`.

    Args:
      folder: A SavedModel, on a local disk.
    """
    path = os.path.join(folder, "saved_model.pb")
    with open(path, "rb") as file:
        model = saved_model_pb2.SavedModel.FromString(file.read())
    [meta_graph] = model.meta_graphs
    _rename_functions(meta_graph)
    for function in meta_graph.graph_def.library.function:
        _remove_counters(function)
    for node in _nodes(meta_graph.graph_def):
        if node.op == "HashTableV2":
            _rename_table(node, os.path.join(folder, "assets"))
    with open(path, "wb") as file:
        file.write(model.SerializeToString(deterministic=True))
    _write_fingerprint(folder)


def _rename_functions(meta_graph: Any) -> None:
    """Numbers functions from 0, and sorts them, in the order of their use."""
    library = meta_graph.graph_def.library
    objects = meta_graph.object_graph_def
    names = _numbered(meta_graph)
    for node in _nodes(meta_graph.graph_def):
        for called in _called(node):
            called.name = names.get(called.name, called.name)
    for function in library.function:
        function.signature.name = names[function.signature.name]
    for node in objects.nodes:
        if node.HasField("function"):
            called = node.function.concrete_functions
            called[:] = [names[name] for name in called]
        elif node.HasField("bare_concrete_function"):
            one = node.bare_concrete_function
            one.concrete_function_name = names[one.concrete_function_name]
    # A new name may be another function's old one.
    old = copy.deepcopy(objects)
    objects.concrete_functions.clear()
    for name, function in old.concrete_functions.items():
        objects.concrete_functions[names[name]].CopyFrom(function)
    order = {name: number for number, name in enumerate(names.values())}
    library.function.sort(key=lambda function: order[function.signature.name])


def _numbered(meta_graph: Any) -> dict[str, str]:
    """Returns function names -> new names, in the order of their use."""
    library = meta_graph.graph_def.library
    functions = {f.signature.name: f for f in library.function}
    names: dict[str, str] = {}

    def number(used: Iterable[str]) -> None:
        for name in used:
            if name in functions and name not in names:
                names[name] = f"{_COUNTER.sub('', name)}_{len(names)}"
                number(_called_names(functions[name].node_def))

    number(_called_names(meta_graph.graph_def.node))
    for node in meta_graph.object_graph_def.nodes:
        number(node.function.concrete_functions)
        number([node.bare_concrete_function.concrete_function_name])
    # Unused functions keep the order in which they were traced.
    number(sorted(functions, key=lambda name: (len(name), name)))
    return names


def _nodes(graph: Any) -> Iterator[Any]:
    """Yields the nodes of a graph and of its functions."""
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


def _called(node: Any) -> Iterator[Any]:
    """Yields the function references of a node, as messages with a `name`."""
    for _, value in sorted(node.attr.items()):
        if value.HasField("func"):
            yield value.func
        elif value.HasField("list"):
            yield from value.list.func


def _called_names(nodes: Iterable[Any]) -> Iterator[str]:
    for node in nodes:
        for called in _called(node):
            yield called.name


def _remove_counters(function: Any) -> None:
    """Removes numbers of the process from a function's arguments."""
    for argument in function.signature.input_arg:
        argument.name = _UNUSED.sub("", argument.name)
    for arguments in function.arg_attr.values():
        given = arguments.attr.get("_user_specified_name")
        if given is not None and given.s.isdigit():
            del arguments.attr["_user_specified_name"]


def _rename_table(node: Any, assets: str) -> None:
    """Names a table by the content of its file, not by its path.

    Tables of one name share their content where two models share a session.
    """
    name = node.attr["shared_name"].s.decode()
    if match := _TABLE.fullmatch(name):
        file = os.path.basename(match["path"])
        with open(os.path.join(assets, file), "rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        node.attr[
            "shared_name"
        ].s = f"hash_table_{digest[:16]}_{file}{match['columns']}".encode()


def _write_fingerprint(folder: str) -> None:
    """Writes TensorFlow's fingerprint, its UUID made from the rest of it."""
    fingerprinting_utils.write_fingerprint(folder)
    path = os.path.join(folder, "fingerprint.pb")
    with open(path, "rb") as file:
        fingerprint = fingerprint_pb2.FingerprintDef.FromString(file.read())
    fingerprint.ClearField("uuid")
    digest = hashlib.sha256(fingerprint.SerializeToString(deterministic=True))
    fingerprint.uuid = str(uuid.UUID(bytes=digest.digest()[:16], version=4))
    with open(path, "wb") as file:
        file.write(fingerprint.SerializeToString(deterministic=True))
