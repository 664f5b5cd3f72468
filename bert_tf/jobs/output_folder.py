"""The output folder of a training: reserves it, and reads what it records.

`fine_tuning.json` records what a run trains and on which data, so that a run
with another task, model or training set does not resume the old training.
"""

import contextlib
import fcntl
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatch
from typing import Any

from absl import logging

from bert_tf.base import files, options
from bert_tf.errors import InputError, shortened
from bert_tf.jobs import settings
from bert_tf.jobs.settings import FineTuningOptions

FACTS = "fine_tuning.json"
# The record of a pre-training.
PRETRAINING = "pretraining.json"
# The folder of the released model, and its checkpoint.
RELEASE = "release"
WEIGHTS = "bert_model.ckpt"
_SOURCE = "init_checkpoint"
# Files of these names are outputs, which must not be inputs of the same run.
_OUTPUTS = (
    *("*.tf_record", "*predictions*", "test_results*.tsv", "null_odds.json"),
    *("eval_results.*", "evaluations.jsonl"),
)


# Reserving the folder of a fine-tuning run.


@contextlib.contextmanager
def claimed(
    config: FineTuningOptions,
    strategy: Any,
    facts: Mapping[str, Any],
    inputs: Iterable[str],
    development_set: str | None = None,
) -> Iterator[None]:
    """Reserves --output_dir for a training, until the `with` block ends.

    A run that does not train only checks the folder, and creates it.

    Args:
      config: The options of the run.
      strategy: The devices. The chief claims the folder for all workers.
      facts: The model and the data: `Start.facts` and more.
      inputs: The data files that the run reads.
      development_set: The checksum of the "dev" examples; recorded if they
        select the model.

    Raises:
      InputError: The folder cannot be used or holds another run, the run would
        overwrite a file that it reads, or another worker has other facts or
        files.
    """
    from bert_tf.training.workers import by_chief, require_same_settings

    inputs = [*inputs]
    require_same_settings(strategy, facts, {"the data": inputs})
    with contextlib.ExitStack() as stack:
        by_chief(
            strategy,
            lambda: _claim(config, facts, inputs, development_set, stack),
            "reserve `output_dir`",
        )
        yield


def _claim(
    config: FineTuningOptions,
    facts: Mapping[str, Any],
    inputs: Iterable[str | None],
    development_set: str | None,
    stack: contextlib.ExitStack,
) -> None:
    from bert_tf.serving.export import require_export_dir

    folder, checkpoint = config.output_dir, config.init_checkpoint
    run = {"facts": {**facts}, "settings": {}}
    if config.do_train:
        # With another rank, the checkpoints have other variables.
        run["facts"]["lora_rank"] = config.lora_rank
        if config.lora_rank:
            run["facts"]["lora_alpha"] = config.lora_alpha or config.lora_rank
        run["settings"] = _settings(config, development_set)
        # Other runs may evaluate or predict while one holds the lock.
        stack.enter_context(locked(folder))
    require_folder(folder)
    here, record = _real(folder), read_record(folder)
    has_files = files.exists(folder) and bool(files.listdir(folder))
    replaces = config.overwrite_output_dir and has_files
    if replaces and not record:
        raise InputError(
            "`overwrite_output_dir` replaces earlier runs only, and "
            f"{folder} has files but no {FACTS}. Remove the folder yourself, "
            "or choose another one."
        )
    models = checkpoint, getattr(config, "teacher", None)
    inputs = *inputs, config.bert_config_file, config.vocab_file, *models
    _require_inputs_kept(here, filter(None, inputs), replaces)
    before: Mapping[str, Any] = {}
    if not replaces:
        advice = ", or pass `overwrite_output_dir` to replace that run"
        before = require_same(folder, run, advice)
    if (
        not record
        and config.do_train
        and checkpoint
        # Not the name of one of Google's models.
        and (files.exists(checkpoint) or files.exists(f"{checkpoint}.index"))
        and here in (_real(checkpoint), os.path.dirname(_real(checkpoint)))
    ):
        raise InputError(
            f"`output_dir={folder}` contains `init_checkpoint`, and training "
            "would add newer checkpoints. Choose another folder."
        )
    if config.do_export:
        # An old run stays if the new one could not be exported.
        require_export_dir(settings.export_dir(config))
    if replaces:
        _move_away(folder)
    files.makedirs(folder)
    if config.do_train and not before:
        write_record(folder, run)


def _require_inputs_kept(
    folder: str, inputs: Iterable[str], replaces: bool
) -> None:
    """Checks that a run does not move or overwrite a file that it reads."""
    for path in inputs:
        parent, name = os.path.split(_real(path))
        if replaces:
            is_lost = f"{_real(path)}/".startswith(f"{folder}/")
        else:
            is_lost = parent == folder and any(
                fnmatch(name, pattern) for pattern in _OUTPUTS
            )
        if is_lost:
            raise InputError(
                f"The run would {'move' if replaces else 'overwrite'} its "
                f"input {path}. Choose another `output_dir`."
            )


def _settings(
    config: FineTuningOptions, development_set: str | None
) -> dict[str, Any]:
    """Returns the options that determine how the model is trained and selected.

    With several trainings, each seed has its own folder, so a later run may
    add seeds. See `Option.decides`.
    """
    decisive = {"model"}
    if not config.search:
        decisive.add("setting")
    if not settings.are_several(config):
        decisive.add("seed")
    chosen: dict[str, Any] = {}
    if settings.selects(config):
        decisive.add("score")
        chosen["development_set"] = development_set
    for name, (_, declaration) in options.declared(type(config)).items():
        if declaration.decides in decisive:
            value = getattr(config, name)
            # JSON has no tuples.
            chosen[name] = [*value] if isinstance(value, tuple) else value
    return chosen


def require_same(
    folder: str, run: Mapping[str, Any], advice: str = "", name: str = FACTS
) -> Mapping[str, Any]:
    """Compares a run with the one in the folder; returns the old record, or {}.

    Args:
      folder: The output folder.
      run: The facts and settings that `write_record` would write.
      advice: What else the user can do; follows "Choose another folder".
      name: The name of the record.

    Raises:
      InputError: The two runs have different facts or settings, or one is a
        fine-tuning and the other a pre-training.
    """
    if not is_trained(folder):
        return {}
    [other] = {FACTS, PRETRAINING} - {name}
    if read_record(folder, other):
        raise InputError(
            f"{folder} holds the run of another job, with a record in {other}. "
            "Choose another `output_dir`."
        )
    record = read_record(folder, name)
    before = _flat(record)
    changed = [
        f"{key}={shortened(before[key])}, not {shortened(value)}"
        for key, value in _flat(run).items()
        if before.get(key, value) != value
    ]
    if changed:
        raise InputError(
            f"{folder} holds a run with {'; '.join(changed)}. Choose another "
            f"`output_dir`{advice}."
        )
    return record


def _flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns facts, settings and the model's configuration by name."""
    facts, chosen = record.get("facts", {}), record.get("settings", {})
    values = {**facts, **facts.get("config", {}), **chosen}
    # `init_checkpoint` may differ: a run that resumes warns and ignores it.
    return {n: x for n, x in values.items() if n not in ("config", _SOURCE)}


# Replacing a run.


def _move_away(folder: str) -> None:
    """Moves all but the exports to the first free `FOLDER.replaced-N`."""
    source = _real(folder)
    names = (f"{source}.replaced-{n}" for n in itertools.count(1))
    target = next(name for name in names if not files.exists(name))
    # A server may have exports open. The record is moved last, so that a rerun
    # after a kill finds it and moves the rest.
    moved = {*_names(source)} - {"export"}
    with files.input_errors("move", folder):
        files.makedirs(target)
        for name in sorted(moved, key=lambda name: (name == FACTS, name)):
            _move(os.path.join(source, name), os.path.join(target, name))
    logging.info("Moved the run in %s to %s", folder, target)


def _move(source: str, target: str) -> None:
    """Moves a file or folder; remote folders may have no rename."""
    if not files.is_remote(source) or not files.is_directory(source):
        files.rename(source, target)
        return
    files.makedirs(target)
    for name in _names(source):
        _move(os.path.join(source, name), os.path.join(target, name))
    files.remove_tree(source)


def _names(folder: str) -> list[str]:
    """Returns the names in a folder; object stores end folders with "/"."""
    return [name.rstrip("/") for name in files.listdir(folder)]


def _real(path: str) -> str:
    return path.rstrip("/") if files.is_remote(path) else os.path.realpath(path)


# What a folder records.


def record_best_training(folder: str, training: str) -> None:
    """Records the folder of the training whose model is kept."""
    write_record(
        folder,
        {**read_record(folder), "kept": os.path.relpath(training, folder)},
    )


def best_training(folder: str) -> str:
    """Returns the folder of the best training; by default `folder`."""
    inside = read_record(folder).get("kept", os.curdir)
    return folder if inside == os.curdir else os.path.join(folder, inside)


def is_trained(folder: str) -> bool:
    """Returns whether a folder has a checkpoint, trials or a release."""
    if not files.is_directory(folder):
        return False
    return any(
        name in ("trials", RELEASE) or fnmatch(name, "model.ckpt-*.index")
        for name in _names(folder)
    )


def recorded_facts(folder: str) -> dict[str, Any]:
    """Returns the facts and settings that a folder records.

    Returns:
      {} if the folder has no model.
    """
    record = read_record(folder) if is_trained(folder) else {}
    return {**record.get("facts", {}), **record.get("settings", {})}


def find_release(config: FineTuningOptions) -> str | None:
    """Returns the release in --output_dir if the run does not train, or None.

    The release takes precedence over --init_checkpoint, from which it was
    trained.

    Raises:
      InputError: There is no model to use.
    """
    release = os.path.join(config.output_dir, RELEASE)
    if config.do_train:
        return None
    if files.exists(os.path.join(release, f"{WEIGHTS}.index")):
        return release
    if not (
        config.init_checkpoint
        or config.bert_config_file
        or is_trained(config.output_dir)
    ):
        # A message about a missing configuration would mislead.
        raise no_model(config.output_dir)
    return None


def no_model(folder: str) -> InputError:
    """Returns the error for a run without a model to use."""
    return InputError(
        f"There is no fine-tuned model in `output_dir={folder}`. Pass one as "
        "`init_checkpoint`, or pass `do_train`."
    )


def read_record(folder: str, name: str = FACTS) -> dict[str, Any]:
    path = os.path.join(folder, name)
    return files.read_json(path) if files.exists(path) else {}


def write_record(
    folder: str, record: Mapping[str, Any], name: str = FACTS
) -> None:
    text = json.dumps(record, indent=2, sort_keys=True, ensure_ascii=False)
    files.write_text(os.path.join(folder, name), text + "\n")


def require_folder(path: str) -> None:
    if files.exists(path) and not files.is_directory(path):
        raise InputError(
            f"`output_dir={path}` is a file. Pass a folder, or a new path."
        )


# Locks.


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """Locks a local output folder against other trainings on this machine.

    A missing folder is created, and removed if nothing was written to it. The
    kernel releases the lock when the process ends, even by SIGKILL. On file
    systems without locks, nothing is locked.

    Raises:
      InputError: Another process trains there, or the folder cannot be created.
    """
    if files.is_remote(folder):
        yield
        return
    is_new = not files.exists(folder)
    if is_new:
        with files.input_errors("create folder", folder):
            files.makedirs(folder)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"Another process is writing to {folder}. Wait until it ends, "
                "or pass another `output_dir`."
            ) from error
        except OSError:
            pass  # The file system has no locks.
        yield
    finally:
        os.close(descriptor)
        if is_new and not files.listdir(folder):
            files.remove_tree(folder)
