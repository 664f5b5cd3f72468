"""What a job starts from: a checkpoint, its configuration, vocabulary, casing.

Old command lines name each file. What they leave out is taken from the
checkpoint, and an option that contradicts the checkpoint is an error: a wrong
casing costs several points of accuracy and shows nowhere else.
"""

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from absl import logging

from bert_tf import files
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.interop.checkpoint import TRAINED_WITH, Pretrained
from bert_tf.jobs import output_folder
from bert_tf.jobs.settings import FineTuningOptions
from bert_tf.options import OptionError, Options, declared
from bert_tf.pretrained import (
    compare_configs,
    open_pretrained,
    read_config,
)
from bert_tf.tasks.examples import have_names
from bert_tf.tokenization.wordpiece import load_vocab, require_fit
from bert_tf.training.weights import Selection, Weights, scope_of

# Google's releases say it in the name of their folder alone.
_CASING_IN_NAME = (
    (re.compile(r"(?<![a-z])uncased(?![a-z])"), True),
    (re.compile(r"(?<![a-z])cased(?![a-z])"), False),
    (re.compile(r"(multilingual|chinese)_L-12_H-768_A-12"), True),
)


@dataclasses.dataclass(frozen=True)
class Start:
    """What a job starts from.

    Attributes:
      config: The model's configuration.
      vocab: The tokens in the order of their ids.
      do_lower_case: Whether the vocabulary is uncased.
      strip_accents: Whether accents are stripped; None for the same as
        `do_lower_case`.
      init_checkpoint: The checkpoint with the weights; None for random ones.
      labels: The labels of a model that was fine-tuned before.
      head: The model's head, one of `interop.pretrained.HEADS`, if known.
      bilstm_head: Whether the head is on top of a BiLSTM.
      trained_with: The recorded options, of `interop.pretrained.TRAINED_WITH`.
    """

    config: BertConfig
    vocab: tuple[str, ...]
    do_lower_case: bool
    strip_accents: bool | None
    init_checkpoint: str | None
    labels: tuple[str, ...] | None = None
    head: str | None = None
    bilstm_head: bool = False
    trained_with: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def facts(
        self, task: str, problem: str, labels: Iterable[str]
    ) -> dict[str, Any]:
        """Returns what two runs must share to train the same model."""
        words = "\n".join(self.vocab).encode()
        return {
            "task": task,
            "problem": problem,
            "labels": list(labels),
            "config": self.config.to_dict(),
            "vocabulary": hashlib.sha256(words).hexdigest(),
            "do_lower_case": self.do_lower_case,
            "strip_accents": self.strip_accents,
        }


_Config = TypeVar("_Config", bound=Options)
_FineTuningConfig = TypeVar("_FineTuningConfig", bound=FineTuningOptions)


def resolve(
    config: _FineTuningConfig, *heads: str
) -> tuple[_FineTuningConfig, Start]:
    """Returns what a fine-tuning job starts from, and its complete options.

    To evaluate or predict, the release of an earlier run in --output_dir is
    enough. An export without training also takes the options that the model
    was trained with from there.

    Args:
      config: The options of the job.
      *heads: The heads that models of the job can have, of
        `interop.pretrained.HEADS`.

    Returns:
      `config` without options that wait for a fallback, and the start.

    Raises:
      InputError: No model was found, or it belongs to another task.
    """
    checkpoint, folder = config.init_checkpoint, config.output_dir
    if not config.do_train:
        release = os.path.join(folder, output_folder.RELEASE)
        weights = os.path.join(release, output_folder.WEIGHTS)
        if files.exists(f"{weights}.index"):
            # The model in the folder takes precedence over the checkpoint that
            # it was trained from.
            checkpoint = release
        elif not (
            checkpoint
            or config.bert_config_file
            or output_folder.is_trained(folder)
        ):
            # The message about a missing configuration would mislead here.
            raise output_folder.no_model(folder)
    found = find_start(
        checkpoint,
        config.bert_config_file,
        config.vocab_file,
        config.do_lower_case,
        config.strip_accents,
    )
    # What an encoder lacks is reported later, with the name of the variable.
    if not config.do_train and found.head not in (None, "encoder", *heads):
        raise InputError(
            f"expected a model for this task. Received: {checkpoint}, whose "
            f"head is {found.head}, not {' or '.join(heads)}; name another, "
            "or give --do_train"
        )
    if not config.do_train:
        known = output_folder.known(folder)
        recorded = known or _recorded_beside(checkpoint)
        labels = tuple(recorded.get("labels", found.labels or ()))
        found = dataclasses.replace(found, labels=labels or None)
        if config.bilstm_head is None:
            has_one = known.get("bilstm_head", found.bilstm_head)
            config = dataclasses.replace(config, bilstm_head=bool(has_one))
    if config.do_export and not config.do_train:
        config = with_recorded(
            config,
            (folder, output_folder.known(folder)),
            (checkpoint, found.trained_with),
        )
    config = config.with_fallbacks()
    require_length(config.max_seq_length, found.config)
    return config, dataclasses.replace(
        found, init_checkpoint=config.init_checkpoint
    )


def _recorded_beside(checkpoint: str | None) -> dict[str, Any]:
    """Returns what the folder of a training checkpoint records of its model."""
    folder, name = os.path.split(checkpoint or "")
    if not re.fullmatch(r"model\.ckpt-\d+", name):
        return {}
    return output_folder.known(folder or os.curdir)


def with_recorded(
    config: _Config, *records: tuple[str | None, Mapping[str, Any]]
) -> _Config:
    """Restores the options that were recorded when a model was trained.

    Options that the caller has set stay as they are.

    Args:
      config: The options of a job.
      *records: The path of a model, and what is recorded of it. Earlier records
        take precedence.

    Returns:
      The configuration with the options of `TRAINED_WITH` filled in.

    Raises:
      InputError: A recorded value is impossible.
    """
    missing = [
        name
        for name in TRAINED_WITH
        if name in declared(type(config)) and getattr(config, name) is None
    ]
    for path, known in records:
        taken = {n: known[n] for n in missing if known.get(n) is not None}
        for name, value in taken.items():
            config = _with_record(config, name, value, path)
        if taken:
            logging.info("As %s was trained: %s", path, _words(taken))
        missing = [name for name in missing if name not in taken]
    config = config.with_fallbacks()
    if missing:
        logging.warning(
            "Using defaults for options that the model does not record: %s",
            _words({name: getattr(config, name) for name in missing}),
        )
    return config


def _with_record(
    config: _Config, name: str, value: Any, path: str | None
) -> _Config:
    try:
        return dataclasses.replace(config, **{name: value})  # type: ignore[arg-type]
    except OptionError as error:
        raise InputError(
            f"{path} records --{name}={value!r}, which is not a valid value. "
            f"Give --{name}."
        ) from error


def _words(values: Mapping[str, Any]) -> str:
    """Returns options as on a command line."""
    return " ".join(f"--{n}={json.dumps(v)}" for n, v in values.items())


def trained_with(config: Options) -> dict[str, Any]:
    """Returns the options that a release records of its training."""
    return {
        name: getattr(config, name)
        for name in TRAINED_WITH
        if name in declared(type(config))
    }


def find_start(
    init_checkpoint: str | None,
    bert_config_file: str | None = None,
    vocab_file: str | None = None,
    do_lower_case: bool | None = None,
    strip_accents: bool | None = None,
) -> Start:
    """Combines what the options name with what the checkpoint contains.

    Args:
      init_checkpoint: What `open_pretrained` opens, or None.
      bert_config_file: Google's or Hugging Face's; None for the checkpoint's.
      vocab_file: None for the checkpoint's.
      do_lower_case: None for what the checkpoint says, else True.
      strip_accents: None for what the checkpoint says.

    Raises:
      InputError: Something is nowhere to be found, does not fit the other
        parts, or contradicts the checkpoint.
    """
    pretrained = None
    if init_checkpoint:
        pretrained = open_pretrained(init_checkpoint)
    config = _config(bert_config_file, pretrained)
    vocab = _vocab(vocab_file, pretrained, config)
    if pretrained is not None:
        _require_rows(config, pretrained)
    return Start(
        config=config,
        vocab=vocab,
        do_lower_case=_casing(do_lower_case, pretrained),
        strip_accents=_accents(strip_accents, pretrained),
        init_checkpoint=init_checkpoint,
        labels=pretrained.labels if pretrained else None,
        head=pretrained.head if pretrained else None,
        bilstm_head=pretrained.bilstm_head if pretrained else False,
        trained_with=pretrained.trained_with if pretrained else {},
    )


def open_start(
    path: str, *, config: BertConfig, task: Any, is_trained: bool
) -> Weights:
    """The weights of a checkpoint, with its head where the task has the same.

    A model of another task is a start for training as well (appendix A.3 of
    the paper trains RTE from MNLI's weights, as do many): its head goes.

    Args:
      path: What `open_pretrained` opens.
      config: The configuration of the model.
      task: It has `head`, `bilstm_head`, `problem_type` and `labels`.
      is_trained: Whether a head that is missing will be trained.

    Raises:
      InputError: The checkpoint does not fit, or has no head of the task's
        where none will be trained.
    """
    pretrained = open_pretrained(path)
    compare_configs(config, pretrained)
    weights = pretrained.weights
    difference = _difference(pretrained, task, is_trained)
    if difference is None:
        return weights
    if not is_trained:
        raise InputError(
            f"expected a model for this task. Received: {pretrained.path}, "
            f"{difference}; name another, or give --do_train"
        )
    logging.warning(
        "The head of %s is not taken, a new one is trained: %s",
        pretrained.path,
        difference,
    )
    kept = [name for name in weights.shapes if _is_below_head(name)]
    return Selection(weights, kept)


def _is_below_head(name: str) -> bool:
    """Whether a variable is none of a head for a task."""
    scope = scope_of(name)
    return bool(scope) and not scope.startswith(("bilstm/", "cls/squad"))


def _difference(
    pretrained: Pretrained, task: Any, is_trained: bool
) -> str | None:
    """Returns how the head of a checkpoint differs from the task's, or None.

    Labels of other names matter to training only: without training the task
    has the model's labels, or the user has allowed others in their place.
    """
    shapes = pretrained.weights.shapes
    shape = shapes.get("output_weights")
    has_head = shape is not None or "cls/squad/output_weights" in shapes
    if has_head and pretrained.bilstm_head != task.bilstm_head:
        has = "has a" if pretrained.bilstm_head else "has no"
        return f"which {has} BiLSTM below it"
    if shape is None:
        return None
    for name in ("head", "problem_type"):
        theirs, ours = getattr(pretrained, name), getattr(task, name)
        if theirs is not None and theirs != ours:
            return f"whose {name.replace('_', ' ')} is {theirs}, not {ours}"
    rows = 1 if task.head == "choice" else max(1, len(task.labels))
    if shape[0] != rows:
        return f"which has a head of {shape[0]} outputs, not {rows}"
    labels = pretrained.labels or ()
    if is_trained and have_names(labels) and {*labels} != {*task.labels}:
        return f"whose labels are {', '.join(labels)}"
    return None


def require_length(max_seq_length: int, config: BertConfig) -> None:
    """Raises InputError for sequences that the model has no positions for."""
    if max_seq_length > config.max_position_embeddings:
        raise InputError(
            "expected --max_seq_length of at most "
            f"{config.max_position_embeddings}, the max_position_embeddings "
            f"of the configuration. Received: {max_seq_length}"
        )


def _config(path: str | None, pretrained: Pretrained | None) -> BertConfig:
    if path:
        return read_config(path)
    if pretrained is not None and pretrained.config is not None:
        return pretrained.config
    raise _missing("bert_config_file", "configuration", pretrained)


def _vocab(
    path: str | None, pretrained: Pretrained | None, config: BertConfig
) -> tuple[str, ...]:
    if path:
        vocab, where = load_vocab(path), path
    elif pretrained is not None and pretrained.vocab is not None:
        where = f"the vocabulary of {pretrained.path}"
        vocab = load_vocab(pretrained.vocab, where)
    else:
        raise _missing("vocab_file", "vocabulary", pretrained)
    require_fit(vocab, config.vocab_size, where)
    return tuple(vocab)


def _missing(flag: str, what: str, pretrained: Pretrained | None) -> InputError:
    received = "neither"
    if pretrained is not None:
        received = f"{pretrained.path}, which has none"
    return InputError(
        f"expected --{flag}, or --init_checkpoint with a {what} of its own. "
        f"Received: {received}"
    )


def _require_rows(config: BertConfig, pretrained: Pretrained) -> None:
    """Compares the sizes of the vocabularies, in words that say so."""
    shape = pretrained.weights.shapes.get("bert/embeddings/word_embeddings")
    if shape is not None and shape[0] != config.vocab_size:
        raise InputError(
            f"expected a checkpoint of {config.vocab_size} words, the "
            f"vocab_size of the configuration. Received: {pretrained.path} "
            f"with {shape[0]}; give the configuration that it was made with"
        )


def _casing(wish: bool | None, pretrained: Pretrained | None) -> bool:
    if pretrained is None:
        return True if wish is None else wish
    known, source = pretrained.do_lower_case, pretrained.path
    if known is None:
        known = casing_of_name(pretrained.path)
    if known is None:
        return True if wish is None else wish
    if wish is None:
        logging.info("--do_lower_case=%s, as %s is", str(known).lower(), source)
    elif wish != known:
        raise InputError(
            f"expected --do_lower_case={str(known).lower()}, for "
            f"{source} is {'uncased' if known else 'cased'}. Received: "
            f"--do_lower_case={str(wish).lower()}; leave the flag out and "
            "what the checkpoint says is taken"
        )
    return known


def casing_of_name(path: str) -> bool | None:
    """Whether a checkpoint is uncased, from the name of its folder.

    `uncased_L-12_H-768_A-12/bert_model.ckpt` -> True. The original knows seven
    names (`validate_case_matches_checkpoint`), these are all of its releases.

    Returns:
      None where the name does not say.
    """
    path = path.rstrip("/")
    for name in (path, os.path.dirname(path)):
        for pattern, is_uncased in _CASING_IN_NAME:
            if pattern.search(os.path.basename(name)):
                return is_uncased
    return None


def _accents(wish: bool | None, pretrained: Pretrained | None) -> bool | None:
    if wish is not None or pretrained is None:
        return wish
    return pretrained.strip_accents
