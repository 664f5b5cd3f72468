"""The weights that an evaluation during training has found to be the best.

`FOLDER/bert_model.ckpt` and `best.json`, which says what they are. Newer ones
are written beside them first, as `next.*`, `next.best.json` last. From then on
they hold, and are renamed one by one. Whenever a run is killed, `settle` finds
either the older weights whole or the newer ones.
"""

import dataclasses
import json
import os
from collections.abc import Callable, Iterable

from bert_tf import files
from bert_tf.errors import InputError

WEIGHTS = "bert_model.ckpt"
LABEL = "best.json"
_INDEX = WEIGHTS + ".index"
_NEXT = "next."


@dataclasses.dataclass(frozen=True)
class Best:
    """What the weights are.

    Attributes:
      step: Updates that they have seen.
      metric: The name of what they are best by.
      value: Its value.
    """

    step: int
    metric: str
    value: float


def prefix(folder: str) -> str:
    """The checkpoint in the folder, as `Estimator.load_weights` takes it."""
    return os.path.join(folder, WEIGHTS)


def find(folder: str) -> Best | None:
    """What the weights in the folder are, once settled; None without any.

    Raises:
      InputError: `best.json` cannot be read or holds something else.
    """
    path = os.path.join(folder, LABEL)
    if not files.exists(path):
        return None
    values = files.read_json(path)
    try:
        return Best(
            int(values["step"]), str(values["metric"]), float(values["value"])
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"expected step, metric and value in {path}. Received: {values}; "
            f"remove {folder}"
        ) from error


def save(folder: str, best: Best, export: Callable[[str], None]) -> None:
    """Puts new weights in the place of those that are there.

    Args:
      folder: Where they go.
      best: What they are.
      export: Writes them to a prefix, as `Estimator.export_weights` does.
    """
    settle(folder)
    export(os.path.join(folder, _NEXT + WEIGHTS))
    label = json.dumps(dataclasses.asdict(best))
    files.write_text(os.path.join(folder, _NEXT + LABEL), f"{label}\n")
    settle(folder)


def settle(folder: str) -> None:
    """Finishes what a killed run had begun, or undoes it.

    For the one process that writes, before any reads.
    """
    names = [name for name in _names(folder) if name.startswith(_NEXT)]
    if _NEXT + LABEL not in names:
        _remove(folder, names)
        return
    if _NEXT + _INDEX in names:
        # Without an index there is no checkpoint: never does the older one
        # stand beside newer data.
        _remove(folder, {LABEL, _INDEX} & set(_names(folder)))
    for name in sorted(names, key=_turn):
        files.rename(
            os.path.join(folder, name),
            os.path.join(folder, name.removeprefix(_NEXT)),
        )


def forget(folder: str) -> None:
    """Removes the weights of an earlier run."""
    names = [
        name
        for name in _names(folder)
        if name.removeprefix(_NEXT).startswith((LABEL, WEIGHTS))
    ]
    _remove(folder, sorted(names, key=_turn, reverse=True))


def _turn(name: str) -> int:
    """When a file is put in its place: data, the index, what labels them."""
    name = name.removeprefix(_NEXT)
    return {_INDEX: 1, LABEL: 2}.get(name, 0)


def _names(folder: str) -> list[str]:
    return files.listdir(folder) if files.is_directory(folder) else []


def _remove(folder: str, names: Iterable[str]) -> None:
    for name in names:
        files.remove(os.path.join(folder, name))
