"""Pre-trained weights: opens checkpoints of every format and fills models.

A checkpoint may be for another task than the model. `kept_weights` compares
them, for scripts and Python. Its argument `wanted` describes the model: a
`tasks.task.FineTuningTask`, or a `Wanted` if less is known.
"""

import dataclasses
import inspect
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import keras
from absl import logging

from bert_tf.base import files
from bert_tf.checkpoints import hub, huggingface, keras_files, released
from bert_tf.checkpoints.checkpoint import (
    Pretrained,
    have_names,
    require_checkpoint,
    require_sizes,
)
from bert_tf.checkpoints.weights import (
    NEW_HEADS,
    Report,
    Selection,
    Weights,
    checksum,
    restore,
)
from bert_tf.config import BertConfig
from bert_tf.errors import (
    InputError,
    did_you_mean,
    in_file,
    listed,
    require_names,
    tensorflow_required,
    wrong_value,
)
from bert_tf.modeling.variables import checkpoint_variables, encoder_config

# Google's releases show their casing only in the names of their folders.
_CASING_IN_NAME = re.compile(
    r"(?<![a-z])(un)?cased(?![a-z])|(multilingual|chinese)_L-12_H-768_A-12"
)


def load_checkpoint(
    model: keras.Model,
    path: str | os.PathLike[str],
    may_lack: str = NEW_HEADS,
) -> Report:
    """Fills a model with the weights of a checkpoint, on any Keras backend.

    Example:

        config = bert_tf.load_config("bert-base/")
        model = bert_tf.BertClassifier(config, num_labels=3)
        bert_tf.load_checkpoint(model, "bert-base/")

    Args:
      model: One of this project's models, or any Keras model that contains one
        `BertModel`. The latter must be built, by a call for example.
      path: The prefix or directory of a TF1 checkpoint, a Hugging Face folder,
        `hf://owner/name[@revision]`, a `.keras` file, or the name of one of
        Google's models, such as `uncased_L-12_H-768_A-12`.
      may_lack: Regular expression: TF1 names of the variables that may be
        missing in the checkpoint. By default heads and the pooler; "" means
        that none may be missing.

    Returns:
      The variables that were filled, those that are missing and keep their
      values, and the weights of the checkpoint that were not used.

    Raises:
      InputError: If the checkpoint cannot be read or does not fit. The model
        is then unchanged.
    """
    if not isinstance(model, keras.Model):
        raise wrong_value("The first argument", "the model to fill", model)
    path = files.path_text(path, "The second argument, the checkpoint,")
    # Checked before a download, which would be useless for another model.
    _variables(model)
    return fill(model, open_pretrained(path), may_lack)


def fill(
    model: keras.Model, pretrained: Pretrained, may_lack: str = NEW_HEADS
) -> Report:
    """Fills a model with an opened checkpoint; see `load_checkpoint`."""
    variables = _variables(model)
    config = encoder_config(model)
    if config is not None:
        compare_configs(config, pretrained)
    wanted = Wanted(getattr(model, "head_name", None))
    report = restore(variables, kept_weights(pretrained, wanted), may_lack)
    log = logging.warning if report.missing else logging.info
    log("Weights from %s: %s", pretrained.path, report)
    return report


def _variables(model: keras.Model) -> dict[str, keras.Variable]:
    """Returns the model's variables by their TF1 names."""
    if not model.built and hasattr(model, "feature_shapes"):
        # Keras keeps these shapes, for `summary` and exports.
        model.build(model.feature_shapes(None))
    variables = checkpoint_variables(model) if model.built else {}
    if not any(name.startswith("bert/") for name in variables):
        raise InputError(
            f"The model {model.name!r} has no BertModel, or it is not built. "
            "Call it once before loading weights."
        )
    return variables


def load_config(path: str | os.PathLike[str]) -> BertConfig:
    """Returns the configuration of a checkpoint; `path` as in load_checkpoint.

    Raises:
      InputError: If the checkpoint cannot be read or has no configuration.
    """
    return _config_of(open_pretrained(path))


def _config_of(pretrained: Pretrained) -> BertConfig:
    if pretrained.config is None:
        raise in_file(
            pretrained.path,
            "there is no bert_config.json beside the checkpoint. Add it, or "
            "use BertConfig.from_json_file.",
        )
    return pretrained.config


def read_config(path: str | os.PathLike[str]) -> BertConfig:
    """Reads a configuration file: Google's, or Hugging Face's `config.json`.

    "gelu" means the tanh form in Google's files and the erf form in Hugging
    Face's.

    Raises:
      InputError: If the file cannot be read or is not for a BERT.
    """
    path = files.path_text(path)
    if "model_type" in files.read_json(path):
        return huggingface.read_config(path)
    return BertConfig.from_json_file(path)


def open_pretrained(path: str | os.PathLike[str]) -> Pretrained:
    """Opens a checkpoint of any format. Weights are read on access.

    Args:
      path: The prefix of a TF1 checkpoint, with or without `.index`, or its
        directory; a Hugging Face folder or its `.safetensors` file;
        `hf://owner/name[@revision]`; a `.keras` file; or, if no file has this
        path, a name of `released.MODELS`, which is downloaded once.

    Raises:
      InputError: If there is no checkpoint, or it is damaged or of another
        format, or a download fails. Pickles are refused: opening one runs code
        of its author.
    """
    path = files.path_text(path)
    if not path:
        raise InputError("The path of the checkpoint is empty.")
    pretrained = _open(path)
    if pretrained.do_lower_case is None:
        pretrained = dataclasses.replace(
            pretrained, do_lower_case=casing_of_name(path)
        )
    return _with_problem(pretrained, pretrained.head)


def _with_problem(pretrained: Pretrained, head: str | None) -> Pretrained:
    """Marks a classifier with one output and no problem type as a regression.

    Published cross-encoders and reward models do not record their problem;
    transformers also treats them as regressions.
    """
    if head == "classifier" and num_rows(pretrained.weights) == 1:
        problem = pretrained.problem_type or "regression"
        return dataclasses.replace(pretrained, problem_type=problem)
    return pretrained


def _open(path: str) -> Pretrained:
    if path.startswith(hub.SCHEME):
        return huggingface.read(hub.download(path))
    is_file = require_checkpoint(path)
    if is_file and huggingface.find_weights(path):
        return huggingface.read(path)
    if is_file and keras_files.is_keras(path):
        return keras_files.read(path)
    # Before the download, which would be useless without TensorFlow.
    advice = ", or convert it to safetensors on another machine"
    with tensorflow_required(f"{path}: a TF1 checkpoint", advice):
        from bert_tf.checkpoints import tf1
    return tf1.read(path if is_file else released.download(path))


def casing_of_name(path: str) -> bool | None:
    """Returns whether a checkpoint is uncased, from the name of its folder.

    `uncased_L-12_H-768_A-12/bert_model.ckpt` -> True. The original knows seven
    names (`validate_case_matches_checkpoint`); this covers all its releases.

    Returns:
      True if it is uncased, False if it is cased, None if the name does not
      show the casing.
    """
    path = path.rstrip("/")
    for name in (path, os.path.dirname(path)):
        if match := _CASING_IN_NAME.search(os.path.basename(name)):
            return not match[0].startswith("cased")
    return None


def compare_configs(config: BertConfig, pretrained: Pretrained) -> None:
    """Compares options that change the outputs but not the shapes.

    A different activation is only a warning: Google's weights are published
    with both forms of GELU. So is a different direction of attention: training
    may continue with another one.

    Raises:
      InputError: If the number of attention heads differs.
    """
    theirs = pretrained.config
    if theirs is None:
        return
    if config.num_attention_heads != theirs.num_attention_heads:
        raise wrong_value(
            "num_attention_heads of the model",
            f"{theirs.num_attention_heads}, as in {pretrained.path}",
            config.num_attention_heads,
            "Use the checkpoint's configuration.",
        )
    for name in ("hidden_act", "attention_direction"):
        if getattr(config, name) != getattr(theirs, name):
            logging.warning(
                "The model has %s=%s, but %s has %s: its outputs will differ "
                "from the saved model's",
                name,
                getattr(config, name),
                pretrained.path,
                getattr(theirs, name),
            )


# Compares a checkpoint with a task, and selects the weights to keep.

_SPAN_WEIGHTS = "cls/squad/output_weights"


@dataclasses.dataclass(frozen=True)
class Wanted:
    """The head that a model needs; None accepts any value.

    Attributes:
      head: A key of `huggingface_names.HEADS`.
      kind: The kind of task, see `FineTuningTask`.
      problem_type: What the labels of a classifier mean.
      num_outputs: The number of outputs.
      labels: The names of the classes.
    """

    head: str | None
    kind: str | None = None
    problem_type: str | None = None
    num_outputs: int | None = None
    labels: Sequence[str] | None = None


def head_difference(
    pretrained: Pretrained, wanted: Any, is_trained: bool
) -> str | None:
    """Returns how a checkpoint's head differs from the wanted one, or None.

    The names of labels are compared only for training. Otherwise the task has
    the model's labels, or the user has renamed them.
    """
    shapes = pretrained.weights.shapes
    shape = shapes.get("output_weights")
    if shape is None and _SPAN_WEIGHTS not in shapes:
        return None
    for name, theirs in (
        ("head", pretrained.head),
        ("kind", pretrained.kind or pretrained.head),
        ("problem_type", pretrained.problem_type),
    ):
        ours = getattr(wanted, name)
        if None not in (theirs, ours) and theirs != ours:
            return f"its {name.replace('_', ' ')} is {theirs}, not {ours}"
    if shape is not None and wanted.num_outputs not in (None, shape[0]):
        return f"its head has {shape[0]} outputs, not {wanted.num_outputs}"
    labels = pretrained.labels or ()
    # If classes share a name, names cannot be matched.
    if not is_trained or len({*labels}) < len(labels) or not have_names(labels):
        return None
    if wanted.labels is None or {*labels} == {*wanted.labels}:
        return None
    return f"its labels are {listed(labels)}"


def kept_weights(
    pretrained: Pretrained, wanted: Any, is_trained: bool = True
) -> Weights:
    """Returns the weights of a checkpoint, with its head if the head fits.

    Training may start from a model of another task, for example RTE from a
    model of MNLI; a warning says that its head is not used.

    Args:
      pretrained: The checkpoint.
      wanted: The head that the model needs.
      is_trained: Whether a new head can be trained.

    Raises:
      InputError: The head belongs to another task and no new head will be
        trained.
    """
    weights = pretrained.weights
    difference = head_difference(pretrained, wanted, is_trained)
    if difference is None:
        return weights
    if not is_trained:
        raise InputError(
            f"{pretrained.path} is a model of another task: {difference}. Pass "
            "another model, or `do_train`."
        )
    if wanted.head == "encoder":
        return weights
    logging.warning(
        "Training a new head: the head of %s belongs to another task: %s",
        pretrained.path,
        difference,
    )
    names = [name for name in weights.shapes if name.startswith("bert/")]
    return Selection(weights, names)


def num_rows(weights: Weights) -> int | None:
    """Returns the number of outputs of a classifier or tagger, if known."""
    shape = weights.shapes.get("output_weights")
    return None if shape is None else shape[0]


def _wanted_classes(
    pretrained: Pretrained,
    wanted: Wanted,
    labels: Sequence[str] | None,
    num_labels: int | None,
) -> Wanted:
    """Returns `wanted` with the number of outputs, the labels and the problem.

    The head of the checkpoint fits if it has the same labels, in any order, or
    the same number of unnamed classes, which then get the names.
    """
    has_names = labels is not None
    if labels is not None:
        labels = require_names(labels)
        if not labels:
            raise wrong_value("labels", "at least one name", labels)
        if num_labels not in (None, len(labels)):
            raise wrong_value(
                "num_labels", f"{len(labels)}, the number of labels", num_labels
            )
        num_labels = len(labels)
    rows = num_rows(pretrained.weights)
    is_ours = rows is not None and pretrained.head in (None, wanted.head)
    is_ours &= wanted.kind in (None, pretrained.kind or wanted.head)
    if num_labels is None and not is_ours:
        raise InputError(
            f"{pretrained.path} has no head of this kind. Pass labels=[...] or "
            "num_labels for a new head."
        )
    problem, theirs = None, pretrained.labels
    if is_ours and num_labels in (None, rows):
        num_labels, labels = rows, labels or theirs
        if {*(labels or ())} == {*(theirs or ())}:
            problem = pretrained.problem_type
    is_number = pretrained.problem_type == "regression"
    if is_ours and is_number and has_names and len(labels or ()) > 1:
        problem = "single_label_classification"
    return dataclasses.replace(
        wanted, num_outputs=num_labels, labels=labels, problem_type=problem
    )


def warn_of_problem(pretrained: Pretrained, problem_type: str) -> None:
    """Warns if a head is recorded with a different problem type."""
    theirs = pretrained.problem_type
    # A regression's output may also be used as the logit of a label.
    if theirs in (None, "regression", problem_type):
        return
    if problem_type != "regression":
        logging.warning(
            "The head of %s is kept, but its problem type is %s, not %s",
            *(pretrained.path, theirs, problem_type),
        )


def require_activation(
    path: str, activation_fn: str | None, problem: str, advice: str
) -> None:
    """Raises InputError if a recorded activation would be ignored."""
    name = (activation_fn or "Identity").split(".")[-1]
    if name != "Identity" and (name, problem) != ("Sigmoid", "multi_label"):
        raise InputError(
            f"{path} records the activation_fn {activation_fn}, which is not "
            f"applied to the output of {problem}. {advice}"
        )


def require_teacher(teacher: Any, task: Any, name: str) -> None:
    """Raises InputError unless a model can be the teacher of a task.

    The labels are compared by `tasks.distillation.label_order`.

    Args:
      teacher: The checkpoint of the teacher.
      task: The task of the student.
      name: The name of the teacher in messages.
    """
    if teacher.config is None or teacher.vocab is None:
        raise InputError(
            f"{name} needs its bert_config.json and vocab.txt beside the "
            "checkpoint. Add them."
        )
    fault = None
    if tuple(teacher.vocab) != tuple(task.encoding.vocab):
        fault = "another vocabulary"
    elif teacher.do_lower_case is not None and (  # None in Google's releases.
        _lowers_and_strips(teacher) != _lowers_and_strips(task.encoding)
    ):
        fault = "another casing"
    if fault:
        raise InputError(
            f"{name} has {fault} than the model to train, and texts are "
            "tokenized once for both. Pass another teacher, or start from "
            "another checkpoint."
        )
    most = teacher.config.max_position_embeddings
    if task.encoding.max_seq_length > most:
        raise wrong_value(
            "`max_seq_length`",
            f"at most {most}, the max_position_embeddings of the teacher",
            task.encoding.max_seq_length,
        )
    shapes, pooler = teacher.weights.shapes, "bert/pooler/dense/kernel"
    fault = head_difference(teacher, task, is_trained=False)
    if pooler not in shapes and not re.match(task.unused_variables, pooler):
        fault = "it has no pooler"
    if not {_SPAN_WEIGHTS, "output_weights"} & {*shapes}:
        fault = "it has no such head"
    if fault:
        raise InputError(
            f"{name} is not a fine-tuned model of this task: {fault}."
        )
    if hasattr(task, "problem"):
        require_activation(
            name,
            teacher.activation_fn,
            task.problem,
            "Remove it from the teacher's config.json to learn from the "
            "outputs before it.",
        )


def _lowers_and_strips(encoding: Any) -> tuple[bool, bool]:
    """Returns the casing of a checkpoint or a `TextEncoding`."""
    lowers, strips = encoding.do_lower_case, encoding.strip_accents
    return lowers, lowers if strips is None else strips


# `from_pretrained` of the public classes.


def make_model(
    model_class: type[keras.Model],
    path: str | os.PathLike[str],
    labels: Sequence[str] | None = None,
    kind: str | None = None,
    **options: Any,
) -> keras.Model:
    """Makes a model with weights; see `FeatureModel.from_pretrained`."""
    accepted = options_of(model_class)
    require_options(model_class.__name__, options, accepted)
    pretrained = open_pretrained(path)
    heads = keras_files.heads_of(model_class) or [None]
    head = pretrained.head if pretrained.head in heads else heads[0]
    pretrained = _with_problem(pretrained, pretrained.head or head)
    has_pooler = "bert/pooler/dense/bias" in pretrained.weights
    defaults: dict[str, Any] = {"add_pooling_layer": has_pooler}
    if pretrained.classifier_dropout is not None:
        # For a new head too, as in transformers.
        defaults["dropout"] = pretrained.classifier_dropout
    options = {n: x for n, x in defaults.items() if n in accepted} | options
    wanted = Wanted(head, kind)
    has_classes = "num_labels" in accepted
    if has_classes:
        wanted = _wanted_classes(
            pretrained, wanted, labels, options.get("num_labels")
        )
        options["num_labels"], labels = wanted.num_outputs, wanted.labels
    elif labels is not None:
        raise InputError(f"{model_class.__name__} has no labels.")
    weights = kept_weights(pretrained, wanted)
    has_head = weights is pretrained.weights
    if has_classes:
        has_head = "output_weights" in weights
    if not has_head:
        is_same = wanted.problem_type == pretrained.problem_type
        pretrained = dataclasses.replace(
            pretrained,
            kind=None,
            problem_type=wanted.problem_type if is_same else None,
            activation_fn=None,
        )
    config = _config_of(pretrained)
    require_sizes(config, weights)
    model = model_class(config, **options).build_weights(is_restored=True)
    variables = _variables(model)
    report = restore(variables, weights, NEW_HEADS)
    _record_random(model, pretrained.path, report)
    if labels and has_head and pretrained.labels != labels:
        _reorder(variables, pretrained.labels or labels, labels)
    model.checkpoint = dataclasses.replace(
        pretrained, weights={}, head=head, labels=labels
    )
    return model


def _record_random(model: keras.Model, path: str, report: Report) -> None:
    """Logs what a checkpoint filled, and records what it lacked."""
    variables = checkpoint_variables(model)
    random = {name: variables[name] for name in report.missing}
    log, hint = logging.info, ""
    # Not for a pooler that the head does not use, which is frozen.
    if any(variable.trainable for variable in random.values()):
        log, hint = logging.warning, ". They are random until trained"
    log("%s from %s: %s%s", type(model).__name__, path, report, hint)
    if random:
        model.random_variables = report.missing, checksum(random)


def options_of(model_class: type[keras.Model]) -> set[str]:
    """Returns the options that a model class's `from_pretrained` accepts."""
    arguments = {
        name
        for base in model_class.__mro__
        if issubclass(base, keras.Model) and base is not keras.Model
        for name in inspect.signature(base.__init__).parameters
    }
    unnamed = {"self", "config", "args", "kwargs"}
    return arguments - unnamed | {"labels", "dtype", "trainable"}


def require_options(
    class_name: str, options: Iterable[str], names: Collection[str]
) -> None:
    """Raises InputError if an option is not known."""
    for name in options:
        if name not in names:
            hint = did_you_mean(name, names)
            raise InputError(f"{class_name} has no option {name!r}.{hint}")


def _reorder(
    variables: Mapping[str, keras.Variable],
    old: Sequence[str],
    new: Sequence[str],
) -> None:
    """Reorders a head's rows from `old` to `new`, if the names are the same."""
    if {*old} != {*new}:
        return
    order = [old.index(name) for name in new]
    for name in ("output_weights", "output_bias"):
        rows = keras.ops.take(variables[name], order, axis=0)
        variables[name].assign(rows)


def tokenizer_arguments(
    checkpoint: str | os.PathLike[str] | Pretrained,
) -> dict[str, Any]:
    """Returns the vocabulary and the casing of a checkpoint.

    An unknown casing is taken to be uncased, as in the original.

    Args:
      checkpoint: The checkpoint, or its path.

    Raises:
      InputError: If the checkpoint cannot be read or has no vocabulary.
    """
    pretrained = checkpoint
    if not isinstance(pretrained, Pretrained):
        pretrained = open_pretrained(pretrained)
    if pretrained.vocab is None:
        advice = "Add it."
        if pretrained.path.endswith(".keras"):
            advice += " For a saved text model use keras.models.load_model."
        raise in_file(
            pretrained.path,
            f"there is no vocab.txt beside the checkpoint. {advice}",
        )
    return {
        "vocabulary": pretrained.vocab,
        "do_lower_case": pretrained.do_lower_case is not False,
        "strip_accents": pretrained.strip_accents,
    }
