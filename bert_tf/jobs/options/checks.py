"""Checks of a command line that several jobs share.

They look for local files only: other file systems need TensorFlow. Missing
remote files are found when the job opens them.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any

from bert_tf.base import files
from bert_tf.checkpoints.checkpoint import require_checkpoint
from bert_tf.errors import InputError
from bert_tf.jobs import output_folder, settings
from bert_tf.jobs.settings import (
    DistillationOptions,
    ExportOptions,
    FineTuningOptions,
    ModelOptions,
)
from bert_tf.tasks.datasets import DataSet


def are_local(paths: Iterable[str | None]) -> bool:
    """Returns whether none of the given paths is remote."""
    return not any(map(files.is_remote, filter(None, paths)))


def require_files(*paths: str | None) -> None:
    """Raises InputError if a given local file does not exist."""
    for path in filter(None, paths):
        if not files.is_remote(path):
            with files.input_errors("read", path):
                os.stat(path)


def require_model(config: ModelOptions, checkpoint: str | None) -> None:
    """Checks that the files of a model exist.

    Args:
      config: The options that name the files.
      checkpoint: The checkpoint that the job opens, if any.
    """
    if checkpoint:
        if not files.is_remote(checkpoint):
            require_checkpoint(checkpoint)
    elif not config.bert_config_file and not getattr(config, "model_size", 0):
        raise settings.incomplete_model("configuration", config)
    require_files(config.bert_config_file, config.vocab_file)


def require_fine_tuning(config: FineTuningOptions) -> None:
    """Checks the options that all fine-tuning jobs share."""
    settings.splits(config)
    settings.require_devices(config)
    settings.training_config(config, 1, 0)
    if config.early_stopping_patience and not config.save_best:
        raise InputError(
            "`early_stopping_patience` needs `save_best`, the metric that it "
            "watches."
        )
    if config.do_train:
        _require_training(config)
    elif config.overwrite_output_dir:
        raise InputError(
            "`overwrite_output_dir`, which replaces the model in "
            f"{config.output_dir}, needs `do_train`."
        )
    _require_start(config)


def _require_training(config: FineTuningOptions) -> None:
    if config.lora_rank and not config.init_checkpoint:
        raise InputError(
            "`lora_rank` trains adapters of a pre-trained encoder. Pass one as "
            "`init_checkpoint`."
        )
    if config.lora_alpha and not config.lora_rank:
        raise InputError(
            "`lora_alpha` has no effect without `lora_rank`. Leave it out, or "
            "pass `lora_rank`."
        )
    if config.lora_rank and config.num_frozen_layers is not None:
        raise InputError(
            "`num_frozen_layers` has no effect with `lora_rank`, which freezes "
            "all layers. Leave out one of them."
        )
    if not config.search and config.num_train_epochs <= 0:
        raise InputError(
            "`num_train_epochs` must be more than 0 to train; got "
            f"{config.num_train_epochs:g}. Leave out `do_train` to use a model "
            "as it is."
        )


def _require_start(config: FineTuningOptions) -> None:
    """Checks that the model that a fine-tuning job starts from exists."""
    if not config.do_train and files.is_remote(config.output_dir):
        return  # It may have a model.
    if output_folder.find_release(config):
        require_files(config.bert_config_file, config.vocab_file)
        return
    require_model(config, config.init_checkpoint)
    if not config.init_checkpoint and not config.vocab_file:
        raise settings.incomplete_model("vocabulary", config)


def require_teacher(config: DistillationOptions) -> None:
    """Checks that a teacher exists, and is named if an option needs it."""
    config.require_effect("teacher")
    teacher = config.teacher if config.do_train else None
    if teacher is not None and not files.is_remote(teacher):
        require_checkpoint(teacher)


def require_export_dir(config: ExportOptions) -> None:
    """Checks that a job without --output_dir knows where to export to."""
    if config.do_export and not config.export_dir:
        raise InputError("`do_export` needs `export_dir`.")


def require_data_dir(config: Any) -> None:
    """Checks that a job on the files of a data set knows their folder."""
    if settings.splits(config) and not config.data_dir:
        raise InputError("`data_dir` is required, except to export only.")


def require_splits(config: Any, find: Callable[[], DataSet]) -> None:
    """Checks that a data set has the files of the splits that a run needs.

    Args:
      config: The options of a job on the files of a data set.
      find: Returns the data set; it may also look for files.
    """
    paths = (
        *(config.data_dir, config.train_file),
        *(config.dev_file, config.test_file),
    )
    if not are_local(paths):
        return
    try:
        data_set = find()
        for split in settings.splits(config):
            data_set.split(split, config.data_dir)
    except InputError:
        # An ignored --train_file explains why another file is expected.
        config.warn_ignored()
        raise
