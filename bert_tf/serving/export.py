"""Exports for TensorFlow Serving: SavedModels in numbered folders.

    export_dir/
        1763776800/                       a version: seconds since 1970
            saved_model.pb                the functions
            variables/                    the weights, by their TF1 names
            assets/                       vocab.txt, labels.txt
            assets.extra/
                tf_serving_warmup_requests
                batching_parameters.txt
                model_card.json
                README.md                 how to start a server and query it

A server that watches `export_dir` loads a version as soon as it exists. So a
version is written to a folder whose name is not a number, which is renamed when
it is complete. `scheme://` paths often cannot rename folders: there the version
is copied from the local disk, `saved_model.pb` last, since a server ignores a
folder without it.
"""

import contextlib
import errno
import functools
import logging as standard_logging
import numbers
import os
import pathlib
import re
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping

import keras
import tensorflow as tf
from absl import logging

from bert_tf.base import files
from bert_tf.errors import InputError, in_file, wrong_value
from bert_tf.modeling.variables import checkpoint_variables
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
from bert_tf.serving.served import Served, Tensors


@contextlib.contextmanager
def at_least(level: int, *loggers: str) -> Iterator[None]:
    """Silences absl's and the named loggers below one of absl's levels."""
    silenced = [standard_logging.getLogger(name) for name in ("absl", *loggers)]
    levels = [logger.level for logger in silenced]
    verbosity = logging.get_verbosity()
    # TensorFlow sets the level of absl's logger from the verbosity.
    logging.set_verbosity(level)
    for logger in silenced:
        logger.setLevel(logging.converter.absl_to_standard(level))
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        # set_verbosity gives absl's logger a level even if it had none before,
        # which would hide a program's INFO messages. So this comes last.
        for logger, before in zip(silenced, levels, strict=True):
            logger.setLevel(before)


# The weights.

# Layer norms and output biases compute in float32 under any policy.
_WIDE = ("/gamma", "/beta", "output_bias")


class StoredWeights:
    """The variables of an export of a built model.

    Args:
      model: The model.

    Attributes:
      by_name: TensorFlow variables by their TF1 names: a copy in the model's
        compute dtype if the model casts the variable, else the model's own.
    """

    def __init__(self, model: keras.Model):
        self.by_name: dict[str, tf.Variable] = {}
        self._cast: list[tuple[keras.Variable, tf.Variable]] = []
        for name, variable in checkpoint_variables(model).items():
            stored = variable.value
            is_cast = variable.dtype != model.compute_dtype
            if is_cast and not name.endswith(_WIDE):
                narrow = tf.cast(stored, model.compute_dtype)
                stored = tf.Variable(narrow, trainable=False)
                self._cast.append((variable, stored))
            self.by_name[name] = stored

    def used_by(self, method: Callable) -> Callable:
        """Returns a method of the model that uses these variables."""

        @functools.wraps(method)
        def call(*arguments):
            scope = keras.StatelessScope()
            for variable, stored in self._cast:
                # The scope's constructor would cast `stored` to float32.
                scope.add_update((variable, stored))
            with scope:
                return method(*arguments)

        return call


# The export.

EXTRA = "assets.extra"
MODEL_FILE = "saved_model.pb"

# The name is part of URLs, paths and command lines.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

Method = Callable[[Tensors], dict[str, tf.Tensor]]


def export(
    served: Served,
    export_dir: str,
    *,
    name: str = "bert",
    metrics: Mapping[str, float | None] | None = None,
    source: str | None = None,
    version: int | None = None,
) -> str:
    """Writes a new version of a model, atomically.

    After an error, existing versions are unchanged and there is no new one.
    Leftovers of processes killed on this machine are removed.

    Args:
      served: The model, with its tokenizer and labels.
      export_dir: The folder of the versions; created if missing.
      name: The model's name on the server.
      metrics: See `model_card`.
      source: See `model_card`.
      version: The version number; None for the time in seconds, or for the
        highest existing number plus 1 if that is larger.

    Returns:
      The folder of the new version.

    Raises:
      InputError: If the version exists, the folder cannot be written to, or the
        name or the version is invalid.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        requirement = "letters, digits, '.', '_' and '-'"
        raise wrong_value("The model's name on the server", requirement, name)
    if version is not None:
        is_number = isinstance(version, numbers.Integral)
        is_number = is_number and not isinstance(version, bool)
        if not is_number or not 0 < version < 2**63:
            raise wrong_value("version", "a positive 64-bit integer", version)
        path = os.path.join(export_dir, str(version))
        if files.exists(path):
            raise _exists_already(path)
    with _temporary_folder(export_dir) as folder:
        os.mkdir(folder)
        signatures = save(served, folder)
        card = model_card(served, folder, name, metrics, source)
        texts = {
            BATCHING: BATCHING_PARAMETERS,
            MODEL_CARD: to_json(card),
            README: readme(name, served.kind, signatures, served.example),
        }
        extra = pathlib.Path(folder, EXTRA)
        extra.mkdir()
        write_warm_up(str(extra / WARM_UP), served, name)
        for file, text in texts.items():
            (extra / file).write_text(text, "utf-8")
        path = _publish(folder, export_dir, version)
    logging.info("Exported %s as %s", name, path)
    return path


def require_export_dir(export_dir: str) -> None:
    """Creates the folder; raises InputError if it cannot be written to."""
    with _temporary_folder(export_dir):
        pass


def save(served: Served, folder: str) -> dict[str, Signature]:
    """Writes the SavedModel.

    It contains TensorFlow variables and tables, nothing of Keras: loading it
    needs neither Keras nor this package.
    """
    stored = StoredWeights(served.model)

    def answer_tokens(features: Tensors) -> dict[str, tf.Tensor]:
        # TensorFlow's CPU kernels do not check the shape of a mask that is
        # added to attention scores: a request could crash the server.
        shape = tf.shape(features["input_ids"])
        return served.answer_tokens(
            {name: tf.reshape(x, shape) for name, x in features.items()}
        )

    methods = {
        "serving_default": (served.inputs, served.answer),
        "tokens": (served.token_inputs, answer_tokens),
        "tokenize": (served.inputs, served.tokenize),
    }
    functions = {
        name: _trace(stored.used_by(method), specs)
        for name, (specs, method) in methods.items()
    }
    root = tf.Module()
    root.weights = stored.by_name
    # The tables; their files are the assets.
    root.names = served.submodules
    # TensorFlow logs the files it writes, with two loggers.
    with at_least(logging.WARNING, tf.get_logger().name):
        tf.saved_model.save(root, folder, signatures=functions)
    return {
        name: Signature(specs, functions[name].structured_outputs)
        for name, (specs, _) in methods.items()
    }


def _trace(
    method: Method, specs: Mapping[str, tf.TensorSpec]
) -> tf.types.experimental.ConcreteFunction:
    """Traces a method as a graph that takes the dict's values by name."""
    # No method has Python control flow over tensors, and converting is slow.
    function = tf.function(lambda **values: method(values), autograph=False)
    return function.get_concrete_function(**specs)


def _exists_already(path: str) -> InputError:
    return in_file(
        path, "this version exists already. Pass another number, or none."
    )


@contextlib.contextmanager
def _temporary_folder(export_dir: str) -> Iterator[str]:
    """Yields the path of a folder to create; removes it after the block.

    The name of its parent contains the machine and the process, since it is
    unknown whether processes of other machines are still alive. Errors of the
    file system become InputErrors.
    """
    with files.input_errors(
        "write the export to", export_dir, tf.errors.OpError
    ):
        files.makedirs(export_dir)
        place, prefix = None, None
        if not files.is_remote(export_dir):
            host = re.sub(r"\W", "_", socket.gethostname())
            prefix = os.path.join(export_dir, f"export-{host}")
            files.remove_leftovers(prefix)
            place, prefix = os.path.split(files.temporary_prefix(prefix))
        # A subfolder, since only this user may read the temporary folder.
        with tempfile.TemporaryDirectory(
            prefix=prefix, dir=place, ignore_cleanup_errors=True
        ) as folder:
            yield os.path.join(folder, "version")


def _publish(folder: str, export_dir: str, version: int | None) -> str:
    """Moves a version to its number; by default the time, or a higher one.

    A server loads the highest number. One may be above the time if a user
    chose it, or the clock was set back.
    """
    names = (name.rstrip("/") for name in files.listdir(export_dir))
    versions = (
        int(name) for name in names if re.fullmatch("[0-9]{1,18}", name)
    )
    highest = max(versions, default=0)
    number = max(int(time.time()), highest + 1) if version is None else version
    if number < highest:
        logging.warning(
            "%s has version %d, which a server loads rather than version %d",
            export_dir,
            highest,
            number,
        )
    move = _copy if files.is_remote(export_dir) else os.rename
    while True:
        path = os.path.join(export_dir, str(number))
        try:
            if not files.exists(path):
                move(folder, path)
                return path
        except OSError as error:
            # Another export may take the number meanwhile.
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
        if version is not None:
            raise _exists_already(path)
        number += 1


def _copy(source: str, target: str) -> None:
    """Copies a version, MODEL_FILE last; removes the copy after an error."""
    with contextlib.ExitStack() as undo:
        files.makedirs(target)
        undo.callback(files.remove_tree, target)
        relative = [
            os.path.relpath(os.path.join(folder, name), source)
            for folder, _, names in os.walk(source)
            for name in names
        ]
        for name in sorted(
            relative, key=lambda name: (name == MODEL_FILE, name)
        ):
            path = os.path.join(target, name)
            files.makedirs(os.path.dirname(path))
            tf.io.gfile.copy(os.path.join(source, name), path)
        undo.pop_all()
