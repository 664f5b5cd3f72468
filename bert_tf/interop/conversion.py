"""From one format to another, with an account of every variable."""

import dataclasses
import fnmatch
import math
from collections.abc import Mapping, Sequence

import numpy as np

from bert_tf.errors import InputError
from bert_tf.interop import huggingface
from bert_tf.interop.huggingface_names import PARTS_OF_HEAD, Row, rows
from bert_tf.interop.pretrained import HEADS, Pretrained
from bert_tf.training.weights import BOOKKEEPING, Weights

FORMATS = ("google", "huggingface", "keras")


class Selection:
    """Some of the weights of a checkpoint: a `Weights`.

    Args:
      weights: Where they are from.
      names: Which.
    """

    def __init__(self, weights: Weights, names: Sequence[str]):
        self.path = weights.path
        self._weights = weights
        self.shapes: Mapping[str, Sequence[int]] = {
            name: weights.shapes[name] for name in names
        }

    def __contains__(self, name: str) -> bool:
        return name in self.shapes

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.shapes:
            raise KeyError(name)
        return self._weights[name]


@dataclasses.dataclass(frozen=True)
class Conversion:
    """What is to be written, and what becomes of every variable.

    Attributes:
      source: What was read.
      target: What is written; its weights are those of its head alone.
      to: The format to write, one of `FORMATS`.
      bookkeeping: Optimizer slots and counters that are kept.
      left_over: What is not written, and why: reason to names.
      missing: What a model of this head has besides, and why it may be
        missing: reason to names.
    """

    source: Pretrained
    target: Pretrained
    to: str
    bookkeeping: tuple[str, ...]
    left_over: Mapping[str, tuple[str, ...]]
    missing: Mapping[str, tuple[str, ...]]

    def __str__(self) -> str:
        read, written = self.source.weights, self.target.weights
        lines = [
            _line("read", read.shapes, f"from {self.source.path}"),
            _line("written", written.shapes, f"as {self.target.head}"),
        ]
        if self.bookkeeping:
            lines.append(f"kept        {len(self.bookkeeping)} optimizer slots")
        for title, found in (
            ("left over", self.left_over),
            ("missing", self.missing),
        ):
            lines += [
                f"{title:<11} {len(names)}: {_few(names)} ({reason})"
                for reason, names in found.items()
            ] or [f"{title:<11} 0"]
        return "\n".join(lines)


def plan(
    source: Pretrained,
    to: str,
    head: str | None = None,
    keep_optimizer: bool = False,
    drop: Sequence[str] = (),
) -> Conversion:
    """Decides what becomes of every variable; writes nothing.

    Args:
      source: What to convert, with its configuration.
      to: The format to write, one of `FORMATS`.
      head: The kind of model to make, one of `HEADS`; None for what it is.
      keep_optimizer: Whether Adam's slots and the step are kept.
      drop: Patterns (`*`, `?`) of names of unknown variables that may be lost.

    Raises:
      InputError: A variable is missing, of another shape, or nobody knows what
        it is; or there is no configuration; or the format has no place for
        what is asked for.
    """
    if keep_optimizer and to != "google":
        raise InputError(
            "expected --to=google with --keep_optimizer, the one format that "
            f"holds an optimizer. Received: --to={to}"
        )
    head = _decide_head(source, head)
    if source.config is None:
        raise InputError(
            "expected a bert_config.json beside the checkpoint. Received: "
            f"{source.path} without one; give --bert_config_file"
        )
    table = {row.ours: row for row in rows(source.config)}
    slots = [n for n in source.weights.shapes if BOOKKEEPING.match(n)]
    names = [n for n in source.weights.shapes if not BOOKKEEPING.match(n)]
    dropped = _drop([n for n in names if n not in table], drop, source.path)
    wanted = {*PARTS_OF_HEAD[head]}
    if to != "huggingface":
        # Google's models have one throughout, used or not.
        wanted.add("pooler")
    written = [n for n in table if n in names and table[n].part in wanted]
    _check_shapes(written, table, source)
    if keep_optimizer:
        _check_slots(written, slots, source.path)
    missing = [n for n in table if table[n].part in wanted and n not in names]
    target = dataclasses.replace(
        source,
        head=head,
        weights=Selection(source.weights, written),
        labels=_labels(source, head),
    )
    return Conversion(
        source,
        target,
        to,
        tuple(slots) if keep_optimizer else (),
        _reasons(
            ("--drop", dropped),
            (
                f"no part of a model of kind {head} in the format {to}",
                [n for n in names if n not in written and n in table],
            ),
            (
                "optimizer state; --keep_optimizer keeps it",
                [] if keep_optimizer else slots,
            ),
        ),
        _explain_missing(missing, table, head, source.path),
    )


def write(conversion: Conversion, folder: str) -> None:
    """Writes what was planned into an empty directory."""
    if conversion.to == "huggingface":
        huggingface.write(folder, conversion.target)
    elif conversion.to == "keras":
        from bert_tf.interop import keras_files

        keras_files.write(folder, conversion.target)
    else:
        from bert_tf.interop import google

        weights = conversion.source.weights
        kept = {name: weights[name] for name in conversion.bookkeeping}
        google.write(folder, conversion.target, kept or None)


def _decide_head(source: Pretrained, head: str | None) -> str:
    head = head or source.head
    if head not in HEADS:
        raise InputError(
            f"expected --head to be one of {', '.join(HEADS)}, as "
            f"{source.path} does not tell. Received: {head!r}"
        )
    return head


def _drop(
    unknown: Sequence[str], patterns: Sequence[str], path: str
) -> list[str]:
    """The variables that nobody knows, all of them to be lost on purpose."""
    kept = list(unknown)
    for pattern in patterns:
        matched = fnmatch.filter(kept, pattern)
        if not matched:
            raise InputError(
                "expected --drop to name variables that are not BERT's. "
                f"Received: {pattern!r}, which matches none in {path}"
            )
        kept = [name for name in kept if name not in matched]
    if kept:
        raise InputError(
            f"expected variables of BERT in {path}. Received: {len(kept)} "
            f"others, {_few(kept)}; --drop leaves them out, unless "
            "num_hidden_layers of the configuration is wrong"
        )
    return list(unknown)


def _check_shapes(
    names: Sequence[str], table: Mapping[str, Row], source: Pretrained
) -> None:
    for name in names:
        shape = tuple(source.weights.shapes[name])
        if not table[name].fits(shape):
            raise InputError(
                f"expected {name} of shape {_shape(table[name].shape)}, by "
                f"the configuration. Received: {_shape(shape)} in "
                f"{source.path}; give the configuration that it was made with"
            )


def _check_slots(
    written: Sequence[str], slots: Sequence[str], path: str
) -> None:
    """Raises InputError unless training can go on from these slots."""
    expected = ["global_step"]
    expected += [f"{n}/{s}" for n in written for s in ("adam_m", "adam_v")]
    lacking = [name for name in expected if name not in slots]
    if lacking:
        raise InputError(
            f"expected Adam's slots and global_step in {path}. Received: none "
            f"of {_few(lacking)}; leave --keep_optimizer away"
        )


def _explain_missing(
    missing: Sequence[str], table: Mapping[str, Row], head: str, path: str
) -> dict[str, tuple[str, ...]]:
    """The one gap that is none: a pooler that nothing looks at."""
    needed = [n for n in missing if table[n].part in PARTS_OF_HEAD[head]]
    pooler = [n for n in missing if n not in needed]
    if needed:
        raise InputError(
            f"expected the variables of a model of kind {head} in {path}. "
            f"Received: none of {len(needed)}, {_few(needed)}; see --head"
        )
    if len(pooler) == 1:
        raise InputError(
            f"expected the whole pooler or none in {path}. Received: no "
            f"{pooler[0]}"
        )
    return _reasons((f"a model of kind {head} does not use it", pooler))


def _labels(source: Pretrained, head: str) -> tuple[str, ...] | None:
    """The labels, if the model still has classes."""
    return source.labels if "classes" in PARTS_OF_HEAD[head] else None


def _reasons(*found: tuple[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    return {reason: tuple(names) for reason, names in found if names}


def _line(title: str, shapes: Mapping[str, Sequence[int]], rest: str) -> str:
    kept = {n: s for n, s in shapes.items() if not BOOKKEEPING.match(n)}
    numbers = sum(math.prod(shape) for shape in kept.values())
    return f"{title:<11} {len(kept)} variables, {numbers:,} numbers, {rest}"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _shape(shape: Sequence[int]) -> str:
    return f"[{', '.join(str(size or 'any') for size in shape)}]"
