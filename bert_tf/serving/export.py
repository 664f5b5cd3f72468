"""A model as TensorFlow Serving loads it: a SavedModel in a numbered folder.

    export_dir/
        1763776800/                       a version: seconds since 1970
            saved_model.pb                the functions
            variables/                    the weights, by their TF1 names
            assets/                       vocab.txt, labels.txt
            assets.extra/
                tf_serving_warmup_requests
                batching_parameters.txt
                model_card.json
                README.md                 how to start a server and ask it

A server that watches `export_dir` loads a version as soon as there is one. So
it is written under a name that is no number and renamed when it is complete.
On `scheme://` paths, where folders often cannot be renamed at once, it is
written to the local disk and copied, `saved_model.pb` last: a server that
looks before finds no model there and tries again.
"""

import contextlib
import copy
import errno
import functools
import hashlib
import logging as standard_logging
import os
import pathlib
import re
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging
from tensorflow.core.protobuf import fingerprint_pb2, saved_model_pb2
from tensorflow.python.saved_model import fingerprinting_utils

from bert_tf import files
from bert_tf.errors import InputError
from bert_tf.modeling import checkpoint_variables
from bert_tf.serving.readme import (
    BATCHING,
    BATCHING_PARAMETERS,
    MODEL_CARD,
    README,
    WARM_UP,
    Signature,
    model_card,
    readme,
    to_json,
    write_warm_up,
)
from bert_tf.serving.served import Served

# Libraries that tell of their own affairs, kept from it for a while.


_ABSL = "absl"


@contextlib.contextmanager
def at_least(level: int, *loggers: str) -> Iterator[None]:
    """Lets loggers tell nothing below a level; absl's is always among them.

    Args:
      level: One of `absl.logging`.
      *loggers: Their names.
    """
    found = [standard_logging.getLogger(name) for name in (_ABSL, *loggers)]
    levels = [logger.level for logger in found]
    verbosity = logging.get_verbosity()
    # TensorFlow sets absl's logger back and forth by it.
    logging.set_verbosity(level)
    for logger in found:
        logger.setLevel(logging.converter.absl_to_standard(level))
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        # Behind that, which gives absl's logger a level where it had none:
        # what a program logs at INFO would be lost from then on.
        for logger, before in zip(found, levels, strict=True):
            logger.setLevel(before)


# The weights of an export, in the precision in which they are used.


# How the names end of what is used in float32 under any policy: by layer norms,
# and where scores are made.
_WIDE = ("/gamma", "/beta", "output_bias")


class StoredWeights:
    """Variables that an export has in the place of a model's own.

    Args:
      model: A built model.

    Attributes:
      by_name: Raw variables by their TF1 names: in the model's compute dtype
        if it casts them anyway, else the model's own.
    """

    def __init__(self, model: keras.Model):
        self.by_name: dict[str, tf.Variable] = {}
        self._cast: list[tuple[keras.Variable, tf.Variable]] = []
        for name, variable in checkpoint_variables(model).items():
            stored = variable.value
            if variable.dtype != model.compute_dtype and not name.endswith(
                _WIDE
            ):
                stored = tf.Variable(
                    tf.cast(stored, model.compute_dtype), trainable=False
                )
                self._cast.append((variable, stored))
            self.by_name[name] = stored

    def used_by(self, method: Callable) -> Callable:
        """A method of the model that computes with these variables instead."""

        @functools.wraps(method)
        def call(*arguments):
            scope = keras.StatelessScope()
            for variable, stored in self._cast:
                # Its constructor would make float32 of them again.
                scope.add_update((variable, stored))
            with scope:
                return method(*arguments)

        return call


# Rewrites a SavedModel so that equal models give equal files.


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


# A model as TensorFlow Serving loads it: a SavedModel in a numbered folder.


EXTRA = "assets.extra"
MODEL_FILE = "saved_model.pb"

# It becomes a part of URLs, paths and command lines.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def export(
    served: Served,
    export_dir: str,
    *,
    name: str = "bert",
    metrics: Mapping[str, float | None] | None = None,
    source: str | None = None,
    version: int | None = None,
) -> str:
    """Writes a new version of a model.

    Whatever goes wrong, the versions that are there stay as they are and
    nothing new is seen. What killed processes of this machine left behind is
    removed.

    Args:
      served: The model, with its tokenizer and names.
      export_dir: Where the versions are; made where it is missing.
      name: The model's name on the server.
      metrics: How good it was, for the model card; see there.
      source: The checkpoint that it was made from, for the model card.
      version: Its number; None for the time, or the next number that is free.

    Returns:
      The folder of the new version.

    Raises:
      InputError: The version is there already, the place cannot be written
        to, or the name or the number is none.
    """
    _check(name, version)
    if version is not None and files.exists(_folder_of(export_dir, version)):
        raise _taken(_folder_of(export_dir, version))
    with _aside(export_dir) as folder:
        with _writing(export_dir):
            os.mkdir(folder)
        signatures = save(served, folder, export_dir)
        card = model_card(served, folder, name, metrics, source)
        answers = _ask(folder, served, signatures)
        text = readme(card, signatures, served.example, answers)
        with _writing(export_dir):
            extra = os.path.join(folder, EXTRA)
            os.mkdir(extra)
            write_warm_up(os.path.join(extra, WARM_UP), served, name)
            for file, content in (
                (BATCHING, BATCHING_PARAMETERS),
                (MODEL_CARD, to_json(card)),
                (README, text),
            ):
                pathlib.Path(extra, file).write_text(content, "utf-8")
            path = _publish(folder, export_dir, version)
    logging.info("Exported %s as %s", name, path)
    return path


def check_place(export_dir: str) -> None:
    """Sees whether versions can be written there; makes the folder.

    Raises:
      InputError: They cannot.
    """
    with _aside(export_dir):
        pass


def save(served: Served, folder: str, place: str) -> dict[str, Signature]:
    """Writes the SavedModel alone.

    Its object holds raw variables and tables, nothing of Keras: who loads it
    needs neither Keras nor this package, and finds `weights` by their TF1
    names, in the precision of `StoredWeights`.

    Args:
      served: The model.
      folder: Where to.
      place: What to call it where it cannot be written.

    Returns:
      What each of its functions takes and gives.

    Raises:
      InputError: The disk is full.
    """
    stored = StoredWeights(served.model)
    functions = {
        tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY: _concrete(
            stored.used_by(served.answer), served.inputs
        ),
        "tokens": _concrete(
            _of_one_shape(stored.used_by(served.answer_tokens)),
            served.token_inputs,
        ),
        "tokenize": _concrete(served.tokenize, served.inputs),
    }
    root = tf.Module()
    root.weights = stored.by_name
    # The tables, whose files are its assets.
    root.names = served.submodules
    # Of its files TensorFlow tells by two loggers.
    silence = at_least(logging.WARNING, tf.get_logger().name)
    with _writing(place), silence:
        tf.saved_model.save(root, folder, signatures=functions)
        make_reproducible(folder)
    inputs = (served.inputs, served.token_inputs, served.inputs)
    return {
        name: Signature(specs, function.structured_outputs)
        for specs, (name, function) in zip(
            inputs, functions.items(), strict=True
        )
    }


def _concrete(
    method: Callable[[Mapping[str, tf.Tensor]], dict[str, tf.Tensor]],
    specs: Mapping[str, tf.TensorSpec],
) -> tf.types.experimental.ConcreteFunction:
    """A method as a graph that takes its dict's values by their names."""
    return tf.function(lambda **values: method(values)).get_concrete_function(
        **{
            name: tf.TensorSpec(spec.shape, spec.dtype, name)
            for name, spec in specs.items()
        }
    )


def _of_one_shape(
    answer: Callable[[Mapping[str, tf.Tensor]], dict[str, tf.Tensor]],
) -> Callable[[Mapping[str, tf.Tensor]], dict[str, tf.Tensor]]:
    """Gives all features of `answer` the shape of `input_ids`, or fails.

    TensorFlow's CPU kernels do not check the shape of a mask that is added to
    the attention scores: a request with another one could crash the server.
    """

    def reshaped(features: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        shape = tf.shape(features["input_ids"])
        return answer({k: tf.reshape(v, shape) for k, v in features.items()})

    return reshaped


def _ask(
    folder: str, served: Served, signatures: Mapping[str, Signature]
) -> dict[str, dict[str, np.ndarray]]:
    """What the written model says to its example, in the order of outputs."""
    loaded = tf.saved_model.load(folder)
    asked = {
        name: tf.constant(served.example[name], spec.dtype)
        for name, spec in served.inputs.items()
    }
    answers = {}
    for name in ("serving_default", "tokenize"):
        answer = loaded.signatures[name](**asked)
        answers[name] = {
            key: answer[key].numpy() for key in signatures[name].outputs
        }
    return answers


def _check(name: str, version: int | None) -> None:
    if not _NAME.fullmatch(name):
        raise InputError(
            "expected letters, digits, '.', '_' and '-' as the name of the "
            f"model on the server. Received: {name!r}"
        )
    if version is not None and not 0 < version < 2**63:
        raise InputError(
            f"expected a positive number as the version. Received: {version}"
        )


def _folder_of(export_dir: str, version: int) -> str:
    return os.path.join(export_dir, str(version))


def _taken(path: str) -> InputError:
    return InputError(
        f"expected a version that is new. Received: {path}, which is there "
        "already; give another number, or none"
    )


@contextlib.contextmanager
def _aside(export_dir: str) -> Iterator[str]:
    """The path of a folder to be made, which is gone when the block ends.

    The name of the folder around it says machine and process, for nobody can
    tell whether a process of another machine is still writing.
    """
    with _writing(export_dir):
        files.makedirs(export_dir)
        place, prefix = None, None
        if not files.is_remote(export_dir):
            host = re.sub(r"\W", "_", socket.gethostname())
            prefix = os.path.join(export_dir, f"export-{host}")
            files.remove_leftovers(prefix)
            place, prefix = os.path.split(files.temporary_prefix(prefix))
        around = tempfile.TemporaryDirectory(
            prefix=prefix, dir=place, ignore_cleanup_errors=True
        )
    # A folder of its own, for the one around it nobody else may read.
    with around as folder:
        yield os.path.join(folder, "version")


def _publish(folder: str, export_dir: str, version: int | None) -> str:
    """Makes it seen under its number, or under the next one that is free."""
    number = int(time.time()) if version is None else version
    while not _moved(folder, _folder_of(export_dir, number)):
        if version is not None:
            raise _taken(_folder_of(export_dir, version))
        number += 1
    return _folder_of(export_dir, number)


def _moved(folder: str, path: str) -> bool:
    """Moves a version to its place; False where there is something already."""
    if files.exists(path):
        return False
    try:
        (_copy if files.is_remote(path) else os.rename)(folder, path)
    except OSError as error:
        # Another export was faster in taking the number.
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            return False
        raise
    return True


def _copy(source: str, target: str) -> None:
    """Copies a version, what makes it one last; removes it if that fails."""
    with contextlib.ExitStack() as undo:
        files.makedirs(target)
        undo.callback(files.remove_tree, target)
        found = [
            os.path.relpath(os.path.join(folder, name), source)
            for folder, _, names in os.walk(source)
            for name in names
        ]
        for name in sorted(found, key=lambda name: (name == MODEL_FILE, name)):
            path = os.path.join(target, name)
            files.makedirs(os.path.dirname(path))
            tf.io.gfile.copy(os.path.join(source, name), path)
        undo.pop_all()


def _writing(place: str) -> contextlib.AbstractContextManager[None]:
    """Turns what the file system refuses into an InputError."""
    return files.blaming("write the export to", place, tf.errors.OpError)
