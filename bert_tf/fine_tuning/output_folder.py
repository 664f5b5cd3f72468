"""The output folder: whose it is, and what in it is ours to remove.

`fine_tuning.json` holds what a run has learnt and from what. Whoever comes
again with another task or model would otherwise go on training the old one, or
be told that there is nothing left to train.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from absl import logging

from bert_tf import files
from bert_tf.errors import InputError
from bert_tf.fine_tuning.start import Start

FACTS = "fine_tuning.json"

# All that a run writes, by the names of the files and folders.
_OURS = re.compile(
    r"model\.ckpt-.*|checkpoint|events\.out\.tfevents\..*|graph\.pbtxt"
    r"|eval_results\.(txt|json)|evaluations\.jsonl|fine_tuning\.json"
    r"|(manifest\.)?(train|eval|predict)[a-z_]*\.tf_record(\.json)?"
    r"|test_results[a-z_]*\.tsv|predictions[a-z_]*\.tsv"
    r"|eval|best|release|trials|trials\.(json|tsv)|glue_submission"
)


def facts(
    task: str, problem: str, labels: Iterable[str], start: Start
) -> dict[str, Any]:
    """What makes two runs runs of the same model on the same task."""
    words = "\n".join(start.vocab).encode()
    return {
        "task": task,
        "problem": problem,
        "labels": list(labels),
        "config": start.config.to_dict(),
        "vocabulary": hashlib.sha256(words).hexdigest(),
        "do_lower_case": start.do_lower_case,
        "strip_accents": start.strip_accents,
    }


def claim(
    folder: str,
    facts: Mapping[str, Any],
    settings: Mapping[str, Any],
    overwrite: bool = False,
    keep: Iterable[str] = (),
) -> None:
    """Takes a folder for a run, or finds that it is this run's already.

    Args:
      folder: The output folder; it is made if it is not there.
      facts: What `facts` gave.
      settings: How the model is trained; empty if it is not. Others than
        those of the run before are told: they hold for the steps that are
        left.
      overwrite: Whether a run that lies there is removed, whatever it was.
      keep: Paths that the run needs; one that would be removed is an error.

    Raises:
      InputError: It is a file, cannot be written to, or belongs to another
        task or model.
    """
    if files.exists(folder) and not files.is_directory(folder):
        raise InputError(
            "expected --output_dir to be a folder, or new. Received: the file "
            f"{folder}"
        )
    if overwrite and files.exists(folder):
        _remove_run(folder, keep)
    before = _read(folder)
    if before:
        _require_same(before.get("facts", {}), facts, folder)
        _tell_changes(before.get("settings", {}), settings, folder)
    files.makedirs(folder)
    settings = settings or before.get("settings", {})
    _write(folder, {**before, "facts": facts, "settings": settings})


def note_kept(folder: str, training: str) -> None:
    """Notes in which folder the training lies whose model is kept."""
    _write(folder, {**_read(folder), "kept": os.path.relpath(training, folder)})


def kept(folder: str) -> str:
    """The folder of that training: the output folder, or one of a trial."""
    return os.path.normpath(os.path.join(folder, _read(folder).get("kept", "")))


def _read(folder: str) -> dict[str, Any]:
    path = os.path.join(folder, FACTS)
    return files.read_json(path) if files.exists(path) else {}


def _write(folder: str, record: Mapping[str, Any]) -> None:
    text = json.dumps(record, indent=2, sort_keys=True, ensure_ascii=False)
    files.write_text(os.path.join(folder, FACTS), text + "\n")


def _require_same(
    before: Mapping[str, Any], now: Mapping[str, Any], folder: str
) -> None:
    for name, value in now.items():
        if before.get(name) != value:
            raise InputError(
                f"expected --output_dir of {_shown(name, value)}, or a new "
                f"one. Received: {folder}, where a run of "
                f"{_shown(name, before.get(name))} lies; name another folder, "
                "or give --overwrite_output_dir to remove that run"
            )


def _shown(name: str, value: Any) -> str:
    """A fact in a few words: configurations and hashes are long."""
    if name == "task":
        return f"task {value}"
    if name == "vocabulary":
        return f"vocabulary {str(value)[:8]}"
    if name == "config" and isinstance(value, Mapping):
        layers, width = (
            value.get(key) for key in ("num_hidden_layers", "hidden_size")
        )
        return f"a model of {layers} layers, hidden size {width}"
    return f"{name} {json.dumps(value, ensure_ascii=False)}"


def _tell_changes(
    before: Mapping[str, Any], now: Mapping[str, Any], folder: str
) -> None:
    changed = [
        f"{name} was {before[name]}, is {value}"
        for name, value in now.items()
        if name in before and before[name] != value
    ]
    if changed:
        logging.warning(
            "%s holds a run with other settings (%s): steps that are done stay "
            "as they are; --overwrite_output_dir begins anew",
            folder,
            ", ".join(changed),
        )


def _remove_run(folder: str, keep: Iterable[str]) -> None:
    """Removes what runs write, and nothing else."""
    ours = [name for name in files.listdir(folder) if _OURS.fullmatch(name)]
    doomed = [os.path.join(folder, name) for name in ours]
    for path in keep:
        for target in doomed:
            if _is_within(path, target):
                raise InputError(
                    "expected --overwrite_output_dir with inputs outside of "
                    f"--output_dir. Received: {path}, which it would remove"
                )
    for path in doomed:
        files.remove_tree(path)
    if doomed:
        logging.info("Removed the run in %s", folder)


def _is_within(path: str, target: str) -> bool:
    """Whether a file that `path` stands for goes with `target`.

    `path` may be a folder that holds it, or a prefix: checkpoints have files
    with longer names.
    """
    if not files.is_remote(path):
        path, target = os.path.abspath(path), os.path.abspath(target)
    return (
        path == os.path.dirname(target)
        or target.startswith(f"{path}.")
        or f"{path}/".startswith(f"{target}/")
    )
