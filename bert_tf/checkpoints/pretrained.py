"""Pre-trained weights: opens checkpoints of every format and fills models."""

import dataclasses
import inspect
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import keras
from absl import logging

from bert_tf.base import files
from bert_tf.checkpoints import (
    conversion,
    hub,
    huggingface,
    keras_files,
    model_card,
    released,
)
from bert_tf.checkpoints.checkpoint import (
    HEADS,
    KERAS_FILE,
    Pretrained,
    find_unsupported,
    require_checkpoint,
    require_sizes,
)
from bert_tf.checkpoints.compatibility import (
    Wanted,
    keeps_head,
    num_rows,
    wanted_classes,
)
from bert_tf.checkpoints.weights import (
    NEW_HEADS,
    Report,
    Selection,
    Weights,
    checksum,
    described,
    restore,
)
from bert_tf.config import BertConfig
from bert_tf.errors import (
    InputError,
    did_you_mean,
    in_file,
    listed,
    wrong_value,
)
from bert_tf.modeling.variables import checkpoint_variables, encoder_config

# Google's releases show their casing only in the names of their folders.
_CASING_IN_NAME = (
    (re.compile(r"(?<![a-z])uncased(?![a-z])"), True),
    (re.compile(r"(?<![a-z])cased(?![a-z])"), False),
    (re.compile(r"(multilingual|chinese)_L-12_H-768_A-12"), True),
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
    variables = _variables(model)
    pretrained = open_pretrained(path)
    config = encoder_config(model)
    if config is not None:
        compare_configs(config, pretrained)
    head = keras_files.head_of_class(type(model))
    report = restore(variables, _of_same_head(head, pretrained), may_lack)
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


def _of_same_head(head: str | None, pretrained: Pretrained) -> Weights:
    """Returns the weights, without the head if it is for another task."""
    theirs, weights = pretrained.head, pretrained.weights
    same_names = {h for h, x in HEADS.items() if "classes" in x.parts}
    if head == theirs or not {head, theirs} <= same_names:
        return weights
    logging.warning(
        "Ignoring the head of %s: it is for %s, the model's is for %s",
        pretrained.path,
        theirs,
        head,
    )
    return without_head(weights)


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


def load_model(path: str | os.PathLike[str], **options: Any) -> keras.Model:
    """Loads a whole model, as `keras.models.load_model` does.

    For the weights only, of any format, see `load_checkpoint`.

    Args:
      path: A `.keras` file of a model with classes of bert_tf in it.
      **options: Options of Keras's function: `compile`, `custom_objects` and
        `safe_mode`.

    Raises:
      InputError: If the file is missing, damaged or not a `.keras` file, or has
        code in it, which Keras runs with `safe_mode=False` only.
    """
    names = ("compile", "custom_objects", "safe_mode")
    require_options("load_model", options, names)
    return keras_files.load(files.path_text(path), **options)


def read_config(path: str | os.PathLike[str]) -> BertConfig:
    """Reads a configuration file: Google's, or Hugging Face's `config.json`.

    "gelu" means the tanh form in Google's files and the erf form in Hugging
    Face's.

    Raises:
      InputError: If the file cannot be read or is not for a BERT.
    """
    path = files.path_text(path)
    if "model_type" in files.read_json(path):
        return huggingface.read_config(path).config
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
    is_number = head == "classifier" and num_rows(pretrained.weights) == 1
    if not is_number or pretrained.problem_type is not None:
        return pretrained
    return dataclasses.replace(pretrained, problem_type="regression")


def _open(path: str) -> Pretrained:
    if path.startswith(hub.SCHEME):
        return huggingface.read(hub.download(path))
    if not require_checkpoint(path):
        # Before the download, which would be useless without TensorFlow.
        google = _import_google(path)
        return google.read(released.download(path))
    if _is_huggingface(path):
        return huggingface.read(path)
    if path.endswith(".keras") or files.exists(os.path.join(path, KERAS_FILE)):
        return keras_files.read(path)
    return _import_google(path).read(path)


def _import_google(path: str) -> Any:
    """Imports `checkpoints.google`, which needs TensorFlow, to read a path.

    Raises:
      InputError: If TensorFlow is missing, as on other backends of Keras.
    """
    try:
        from bert_tf.checkpoints import google
    except ImportError as error:
        raise in_file(
            path,
            f"reading a TF1 checkpoint needs TensorFlow ({error}). Install it, "
            "or convert the checkpoint to safetensors on another machine.",
        ) from None
    return google


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
        for pattern, is_uncased in _CASING_IN_NAME:
            if pattern.search(os.path.basename(name)):
                return is_uncased
    return None


def _is_huggingface(path: str) -> bool:
    """Returns whether Hugging Face's files are at a path, readable or not."""
    if files.is_directory(path):
        return huggingface.is_folder(path)
    if path.endswith((".safetensors", ".safetensors.index.json")):
        return True
    # Both a TF1 prefix and a pickle may end in .ckpt.
    return files.exists(path) and find_unsupported([path]) is not None


def open_weights(
    path: str | os.PathLike[str], config: BertConfig | None = None
) -> Weights:
    """Returns the weights of `open_pretrained`, for a model with `config`."""
    pretrained = open_pretrained(path)
    if config is not None:
        compare_configs(config, pretrained)
    return pretrained.weights


def compare_configs(config: BertConfig, pretrained: Pretrained) -> None:
    """Compares options that change the outputs but no shapes.

    A different activation is logged only: Google's weights are published with
    both forms of GELU. So is a different direction of attention, since training
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


# `from_pretrained` and `save_pretrained` of the public classes.

# The formats of `save_pretrained` -> the formats of `conversion`.
_SAVED_FORMATS = {"huggingface": "huggingface", "tf1": "google"}


def make_model(
    model_class: type[keras.Model],
    path: str | os.PathLike[str],
    labels: Sequence[str] | None = None,
    kind: str | None = None,
    **options: Any,
) -> keras.Model:
    """Makes a model with weights; see `FeatureModel.from_pretrained`.

    The head of a checkpoint of another `kind` of task is not used.
    """
    require_options(model_class.__name__, options, options_of(model_class))
    try:
        keras.dtype_policies.get(options.get("dtype"))
    except (TypeError, ValueError):
        expected = "a name such as float32 or mixed_bfloat16, or a DTypePolicy"
        raise wrong_value("dtype", expected, options["dtype"]) from None
    pretrained = open_pretrained(path)
    head = keras_files.head_of_class(model_class, pretrained.head)
    pretrained = _with_problem(pretrained, pretrained.head or head)
    accepted = options_of(model_class)
    has_pooler = "bert/pooler/dense/bias" in pretrained.weights
    defaults: dict[str, Any] = {"add_pooling_layer": has_pooler}
    if pretrained.classifier_dropout is not None:
        # As in transformers, for a new head too.
        defaults["dropout"] = pretrained.classifier_dropout
    options = {n: x for n, x in defaults.items() if n in accepted} | options
    wanted = Wanted(head, kind)
    has_head = True
    if "num_labels" in accepted:
        has_head, wanted = wanted_classes(
            pretrained, wanted, labels, options.get("num_labels")
        )
        options["num_labels"], labels = wanted.num_outputs, wanted.labels
    elif labels is not None:
        raise InputError(f"{model_class.__name__} has no labels.")
    weights = pretrained.weights
    parts = {*HEADS[head].parts} if head else set()
    if parts & {"classes", "span"}:
        has_head &= keeps_head(pretrained, wanted)
    if not has_head:
        weights = without_head(weights)
        is_same = wanted.problem_type == pretrained.problem_type
        pretrained = dataclasses.replace(
            pretrained,
            kind=None,
            problem_type=wanted.problem_type if is_same else None,
            activation_fn=None,
        )
    config = _config_of(pretrained)
    require_sizes(config, weights)
    model = model_class(config, **options)
    model.start_as_zeros()
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
    # A pooler that the head does not use is frozen.
    if any(variable.trainable for variable in random.values()):
        log, hint = logging.warning, ", which is random until trained"
    log("%s from %s: %s%s", type(model).__name__, path, report, hint)
    if random:
        model.random_variables = report.missing, checksum(random)


def warn_if_random(model: keras.Model) -> None:
    """Warns once if outputs depend on random weights."""
    if model.is_warned_of_random:
        return
    # Once is enough: computing the checksum for each answer is slow.
    model.is_warned_of_random = True
    _warn_of_random(model, "Call fit first")


def _warn_of_random(model: keras.Model, advice: str) -> None:
    unused, names = model.unused_variables, keras_files.random_weights(model)
    if needed := [n for n in names if not re.match(unused, n)]:
        logging.warning(
            "%s: %s is random, since the checkpoint lacks it. %s",
            model.name,
            described(needed),
            advice,
        )


def options_of(model_class: type[keras.Model]) -> set[str]:
    """Returns the options of `from_pretrained` of a class of models."""
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


def without_head(weights: Weights) -> Weights:
    """Returns the weights of the encoder and its pooler."""
    names = [name for name in weights.shapes if name.startswith("bert/")]
    return Selection(weights, names)


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


def as_checkpoint(
    model: keras.Model, tokenizer: Any = None, **facts: Any
) -> Pretrained:
    """Returns a model as the checkpoint that `save` writes."""
    weights = keras_files.ModelWeights(model, model.name)
    if tokenizer is not None:
        facts["vocab"] = tuple(tokenizer.vocabulary)
        facts["do_lower_case"] = tokenizer.do_lower_case
        follows = tokenizer.strip_accents == tokenizer.do_lower_case
        facts["strip_accents"] = None if follows else tokenizer.strip_accents
    return dataclasses.replace(
        model.checkpoint or Pretrained(model.name, weights),
        path=model.name,
        weights=weights,
        config=model.config,
        **{**facts, "head": keras_files.head_of_model(model, weights)},
    )


def save(
    model: keras.Model,
    folder: str | os.PathLike[str],
    format: str,
    tokenizer: Any = None,
    **facts: Any,
) -> None:
    """Writes a model; see `FeatureModel.save_pretrained`.

    Args:
      model: The model.
      folder: A new or empty folder.
      format: A key of `_SAVED_FORMATS`.
      tokenizer: Its `vocabulary`, `do_lower_case` and `strip_accents` are
        written.
      **facts: Further fields of `Pretrained`.
    """
    path = files.path_text(folder, "The folder")
    if format not in [*_SAVED_FORMATS]:
        formats = listed(_SAVED_FORMATS, last="or", quote=True)
        raise wrong_value("format", formats, format)
    if not model.built:
        model.build()
    if keras_files.head_of_class(type(model)) is None:
        raise InputError(
            f"{type(model).__name__} has no counterpart in other libraries. "
            "Save it with model.save('NAME.keras')."
        )
    _warn_of_random(model, "Call fit first: it is not written")
    options = model.get_config()
    if "dropout" in options:
        facts["classifier_dropout"] = options["dropout"]
    saved = as_checkpoint(model, tokenizer, **facts)
    planned = conversion.plan(saved, _SAVED_FORMATS[format])
    with files.atomic_directory(path) as temporary:
        conversion.write(planned, temporary)
        name = HEADS[saved.head].model
        card = model_card.text(planned.target, name, is_tf1=format == "tf1")
        files.write_text(os.path.join(temporary, model_card.FILE), card)
