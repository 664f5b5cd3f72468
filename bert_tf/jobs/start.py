"""What a job starts from: a checkpoint, its vocabulary and casing, a teacher.

Command lines of google-research/bert name each file. Here, values that a
command line leaves out come from the checkpoint. Values that contradict its
casing or its sizes are errors. Another vocabulary or activation is a warning.

The student's examples are tokenized once, so a teacher has the same vocabulary
and casing. Its outputs become features of the training set: training steps do
not use the teacher, and checkpoints do not contain it.
"""

import dataclasses
import gc
import hashlib
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import tensorflow as tf
from absl import logging

from bert_tf.base.options import OptionError, Options, named
from bert_tf.checkpoints.checkpoint import Pretrained, require_sizes
from bert_tf.checkpoints.pretrained import (
    compare_configs,
    open_pretrained,
    read_config,
)
from bert_tf.checkpoints.weights import Weights
from bert_tf.config import BertConfig
from bert_tf.data import cache
from bert_tf.data.batching import Features
from bert_tf.errors import InputError, listed, wrong_value
from bert_tf.jobs import output_folder
from bert_tf.jobs.settings import (
    FineTuningOptions,
    ModelOptions,
    StartOptions,
)
from bert_tf.tasks.distillation import (
    TeacherTask,
    task_of_teacher,
    with_outputs,
)
from bert_tf.tasks.encoding import TextEncoding
from bert_tf.tokenization.vocabulary_file import load_vocab, require_fit
from bert_tf.training.estimator import Estimator, EvaluationData
from bert_tf.training.settings import TrainingConfig

_Encoding = TypeVar("_Encoding", bound=TextEncoding)
_Config = TypeVar("_Config", bound=Options)
_FineTuningConfig = TypeVar("_FineTuningConfig", bound=FineTuningOptions)
_Labels = tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start(Pretrained):
    """What a job starts from: a checkpoint, completed by the options.

    Without a checkpoint, `path` is empty and the weights are random.

    Attributes:
      config: The model's configuration.
      vocab: The tokens in the order of their ids.
      do_lower_case: Whether the vocabulary is uncased.
      init_checkpoint: The checkpoint that the options name. None for random
        weights, and for the release of an earlier run in --output_dir.
    """

    path: str = ""
    weights: Weights = dataclasses.field(default_factory=dict)  # type: ignore[assignment]
    config: BertConfig
    vocab: tuple[str, ...]
    do_lower_case: bool
    init_checkpoint: str | None = None

    def encoding(
        self, kind: type[_Encoding], max_seq_length: int, **more: Any
    ) -> _Encoding:
        """Returns a `TextEncoding`, or one of its subclasses."""
        return kind(
            vocab=self.vocab,
            do_lower_case=self.do_lower_case,
            strip_accents=self.strip_accents,
            max_seq_length=max_seq_length,
            **more,
        )

    def facts(self, **more: Any) -> dict[str, Any]:
        """Returns facts that all workers, and all runs of a training, share."""
        return {
            **more,
            "config": self.config.to_dict(),
            "vocabulary": vocabulary_checksum(self.vocab),
            "do_lower_case": self.do_lower_case,
            "strip_accents": self.strip_accents,
        }


def resolve(
    config: _FineTuningConfig, *heads: str
) -> tuple[_FineTuningConfig, Start]:
    """Returns the complete options of a fine-tuning job, and its start.

    To evaluate or predict, the release of an earlier run in --output_dir is
    enough. Without training, the options that were recorded during training
    are restored.

    Args:
      config: The options of the job.
      *heads: The heads that models of the job can have, of
        `huggingface_names.HEADS`.

    Returns:
      `config` with all fallbacks filled in, and the start.

    Raises:
      InputError: No model was found, or it belongs to another task.
    """
    checkpoint, folder = config.init_checkpoint, config.output_dir
    release = output_folder.find_release(config)
    if release and checkpoint:
        warn_of_ignored(checkpoint, folder)
    checkpoint = release or checkpoint
    start = find_start(dataclasses.replace(config, init_checkpoint=checkpoint))
    if not config.do_train:
        # Adapters are merged when weights are read, so the model needs none.
        config = dataclasses.replace(config, lora_rank=None, lora_alpha=None)
        # An encoder has no head: `Trainings.open_model` reports what it lacks.
        if start.head not in (None, "encoder", *heads):
            raise InputError(
                f"{checkpoint} is a model of another task: its head is "
                f"{start.head}, not {listed(heads, last='or')}. Pass another "
                "model, or `do_train`."
            )
        facts = output_folder.recorded_facts(folder)
        recorded = facts or _recorded_beside(checkpoint)
        labels = tuple(recorded.get("labels", start.labels or ()))
        start = dataclasses.replace(start, labels=labels or None)
        name = "version_2_with_negative"
        if not config.do_export and getattr(config, name, 0) is None:
            # This run's file may differ, so the recorded value is not used.
            config = dataclasses.replace(config, **{name: False})  # type: ignore[arg-type]
        config = with_recorded(
            config, (folder, facts), (checkpoint, start.trained_with)
        )
    if release:
        # `Trainings.open_model` prefers later checkpoints to the release.
        start = dataclasses.replace(start, init_checkpoint=None)
    if getattr(config, "head_dropout", 0) is None:
        rate = start.classifier_dropout
        config = dataclasses.replace(config, head_dropout=rate)  # type: ignore[call-arg]
    config = config.with_fallbacks()
    require_length(config.max_seq_length, start.config)
    return config, start


def warn_of_ignored(init_checkpoint: str, output_dir: str) -> None:
    """Warns that --init_checkpoint is ignored, since the folder has a model."""
    logging.warning(
        "`init_checkpoint=%s` is ignored, since %s already has a checkpoint",
        init_checkpoint,
        output_dir,
    )


def _recorded_beside(checkpoint: str | None) -> dict[str, Any]:
    """Returns the facts and settings beside a training's `model.ckpt-STEP`."""
    folder, name = os.path.split(checkpoint or "")
    if not re.fullmatch(r"model\.ckpt-\d+", name):
        return {}
    return output_folder.recorded_facts(folder or os.curdir)


def with_recorded(
    config: _Config, *records: tuple[str | None, Mapping[str, Any]]
) -> _Config:
    """Fills in the recorded options that the caller has not set.

    Args:
      config: The options of a job.
      *records: Paths of models with their recorded options. Earlier records
        take precedence.

    Raises:
      InputError: A recorded value is not valid.
    """
    recorded = named(type(config), recorded=True)
    missing = [name for name in recorded if getattr(config, name) is None]
    for path, values in records:
        taken = {n: values[n] for n in missing if values.get(n) is not None}
        for name, value in taken.items():
            try:
                config = dataclasses.replace(config, **{name: value})  # type: ignore[arg-type]
            except OptionError as error:
                raise InputError(
                    f"{path} records `{name}={value!r}`, which is not a valid "
                    f"value. Pass `{name}`."
                ) from error
        if taken:
            logging.info(
                "Options recorded when %s was trained: %s", path, _words(taken)
            )
        missing = [name for name in missing if name not in taken]
    config = config.with_fallbacks()
    missing = [name for name in missing if getattr(config, name) is not None]
    if missing:
        logging.warning(
            "Using defaults for options that the model does not record: %s",
            _words({name: getattr(config, name) for name in missing}),
        )
    return config


def _words(values: Mapping[str, Any]) -> str:
    """Returns options as messages name them."""
    return " ".join(f"`{n}={json.dumps(v)}`" for n, v in values.items())


def trained_with(config: Options, start: Start | None = None) -> dict[str, Any]:
    """Returns the options of a training, for the metadata of its release.

    With `start`, for fine-tuning, they include the head's dropout rate.
    """
    recorded = named(type(config), recorded=True)
    options = {name: getattr(config, name) for name in recorded}
    if start is None:
        return options
    rate = getattr(config, "head_dropout", start.classifier_dropout)
    return {**options, "classifier_dropout": rate}


def find_start(config: StartOptions) -> Start:
    """Combines the files that options name with what the checkpoint contains.

    Raises:
      InputError: A file is missing, does not fit the others, or contradicts
        the checkpoint.
    """
    path = config.init_checkpoint
    if not path:
        bert_config = find_config(config)
        return Start(
            config=bert_config,
            vocab=_vocab(config.vocab_file, None, bert_config),
            do_lower_case=config.do_lower_case is not False,
            strip_accents=config.strip_accents,
        )
    pretrained = open_pretrained(path)
    bert_config = find_config(config, pretrained)
    facts = vars(pretrained) | {
        "config": bert_config,
        "vocab": _vocab(config.vocab_file, pretrained, bert_config),
        "do_lower_case": _casing(config.do_lower_case, pretrained),
    }
    if config.strip_accents is not None:
        facts["strip_accents"] = config.strip_accents
    require_sizes(bert_config, pretrained.weights)
    compare_configs(bert_config, pretrained)
    return Start(**facts, init_checkpoint=path)


def find_config(
    config: ModelOptions, pretrained: Pretrained | None = None
) -> BertConfig:
    """Returns the configuration that options name, or the checkpoint's.

    Raises:
      InputError: There is no configuration.
    """
    size = getattr(config, "model_size", None)
    if size:
        return BertConfig.from_name(size, len(load_vocab(config.vocab_file)))
    if config.bert_config_file:
        return read_config(config.bert_config_file)
    if pretrained is not None and pretrained.config is not None:
        return pretrained.config
    has_size = hasattr(config, "model_size")
    names = "`bert_config_file`" + (", `model_size`" if has_size else "")
    raise _incomplete("configuration", names, pretrained)


def _incomplete(
    what: str, names: str, pretrained: Pretrained | None
) -> InputError:
    """Returns the error for a model without a configuration or vocabulary."""
    if pretrained is not None:
        return InputError(
            f"{pretrained.path} contains no {what}. Pass {names}."
        )
    return InputError(
        f"Pass {names}, or an `init_checkpoint` that contains a {what}."
    )


def vocabulary_checksum(vocab: Iterable[str]) -> str:
    """Returns the SHA-256 of the tokens in the order of their ids."""
    return hashlib.sha256("\n".join(vocab).encode()).hexdigest()


def _vocab(
    path: str | None, pretrained: Pretrained | None, config: BertConfig
) -> tuple[str, ...]:
    tokens = pretrained.vocab if pretrained is not None else None
    if path:
        vocab, where = load_vocab(path), path
        if tokens is not None:
            _compare(vocab, path, tokens, pretrained.path)
    elif tokens is not None:
        where = f"the vocabulary of {pretrained.path}"
        vocab = load_vocab(tokens, where)
    else:
        raise _incomplete("vocabulary", "`vocab_file`", pretrained)
    require_fit(vocab, config.vocab_size, where)
    return tuple(vocab)


def _compare(
    vocab: Iterable[str], path: str, tokens: Iterable[str], checkpoint: str
) -> None:
    """Warns if `vocab` differs from the checkpoint's vocabulary."""
    pairs = enumerate(itertools.zip_longest(vocab, tokens), 1)
    lines = [number for number, (ours, theirs) in pairs if ours != theirs]
    if lines:
        logging.warning(
            "%s is not the vocabulary of %s: line %d is the first of %d that "
            "differ. These tokens start with the embeddings of other tokens. "
            "Leave out `vocab_file` to use the checkpoint's.",
            path,
            checkpoint,
            lines[0],
            len(lines),
        )


def _casing(wish: bool | None, pretrained: Pretrained) -> bool:
    """Returns whether the vocabulary is uncased.

    A wrong casing costs several points of accuracy, with no other symptom.
    """
    lower, path = pretrained.do_lower_case, pretrained.path
    if lower is None:
        return wish is not False
    if wish is None:
        logging.info(
            "Using `do_lower_case=%s`, the casing of %s",
            str(lower).lower(),
            path,
        )
    elif wish != lower:
        raise InputError(
            f"`do_lower_case` must be {str(lower).lower()}, since {path} is "
            f"{'uncased' if lower else 'cased'}; got {str(wish).lower()}. "
            "Leave it out to use the checkpoint's casing."
        )
    return lower


def require_length(max_seq_length: int, config: BertConfig) -> None:
    """Raises InputError if the model has too few position embeddings."""
    most = config.max_position_embeddings
    if max_seq_length > most:
        raise wrong_value(
            "`max_seq_length`",
            f"at most {most}, the max_position_embeddings of the configuration",
            max_seq_length,
        )


# The teacher of a distillation.


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A fine-tuned model from which another model learns.

    Attributes:
      pretrained: The checkpoint.
      task: The task that computes the teacher's outputs.
      checksum: The checksum of the teacher's weights.
    """

    pretrained: Pretrained
    task: TeacherTask
    checksum: str

    def add_outputs(
        self,
        features: Features,
        strategy: tf.distribute.Strategy,
        training: TrainingConfig,
        make_data: EvaluationData,
    ) -> Features:
        """Returns a training set with the teacher's outputs.

        Args:
          features: The training set.
          strategy: The devices.
          training: The settings of the student's training.
          make_data: Returns the training set for `Estimator.predict`.
        """
        path = self.pretrained.path
        logging.info("Outputs of the teacher %s: %d rows", path, len(features))
        estimator = Estimator(
            self.task,
            strategy,
            training,
            None,
            lambda: self.pretrained.weights,
        )
        outputs = estimator.predict(make_data)
        # A cycle of references with traced functions keeps the model alive.
        del estimator
        gc.collect()
        return with_outputs(self.task, features, outputs)


def find_teacher(
    path: str,
    task: Any,
    rename: Callable[[_Labels], _Labels],
) -> Teacher:
    """Opens --teacher.

    Args:
      path: The checkpoint of the teacher.
      task: The student's `FineTuningTask`.
      rename: Maps the teacher's labels to the spelling of the task.

    Raises:
      InputError: The teacher cannot be read, or is not a fine-tuned model of
        the same task with the same labels, vocabulary and casing.
    """
    pretrained = open_pretrained(path)
    teacher_task = task_of_teacher(
        task, pretrained, f"`teacher={path}`", rename
    )
    require_sizes(pretrained.config, pretrained.weights)
    weights = pretrained.weights
    blocks = (weights[name].tobytes() for name in sorted(weights.shapes))
    return Teacher(pretrained, teacher_task, cache.checksum(blocks))
