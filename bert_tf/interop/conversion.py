"""From one format to another, with an account of every variable."""

import dataclasses
import fnmatch
import math
import re
from collections.abc import Mapping, Sequence

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.interop import huggingface
from bert_tf.interop.huggingface_names import PARTS_OF_HEAD, Row, rows
from bert_tf.interop.pretrained import HEADS, Pretrained
from bert_tf.tokenization.wordpiece import load_vocab, warn_if_short
from bert_tf.training.weights import BOOKKEEPING, Selection, Weights

FORMATS = ("google", "huggingface", "keras")

# Keras's model of one pre-training head has the other as well.
_KERAS_PARTS = {
    "masked_lm": PARTS_OF_HEAD["pretraining"],
    "next_sentence": PARTS_OF_HEAD["pretraining"],
}
_SLOT = re.compile(r"/adam_[mv]$")


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
    if source.bilstm_head and head != "encoder":
        raise InputError(
            "expected a model whose head stands on the encoder, as in every "
            f"format. Received: {source.path} with a BiLSTM in between; "
            "--head=encoder --drop='bilstm/*' converts the rest"
        )
    if source.config is None:
        raise InputError(
            "expected a bert_config.json beside the checkpoint. Received: "
            f"{source.path} without one; give --bert_config_file"
        )
    _check_vocabulary(source, source.config)
    table = {row.ours: row for row in rows(source.config)}
    held = source.weights.shapes
    state = [n for n in held if BOOKKEEPING.match(n)]
    unknown = {*held} - {*table} - {*state}
    dropped = _drop(sorted(unknown), drop, source.path)
    parts = _parts(head, to)
    written = [n for n in table if n in held and table[n].part in parts]
    _check_shapes(written, table, source)
    kept = _kept_state(written, state, source.path) if keep_optimizer else []
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
        tuple(kept),
        _reasons(
            *_explained(source.weights),
            ("--drop", dropped),
            (
                f"no part of a model of kind {head} in the format {to}",
                [n for n in table if n in held and table[n].part not in parts],
            ),
            (
                "optimizer state; --keep_optimizer keeps what belongs to the "
                "weights",
                sorted({*state} - {*kept}),
            ),
        ),
        _explain_missing(table, written, head, to, source.path),
    )


def _explained(weights: Weights) -> list[tuple[str, list[str]]]:
    """What a Hugging Face file holds besides: reasons, each with its names."""
    found: dict[str, list[str]] = {}
    for name, reason in getattr(weights, "explained", {}).items():
        found.setdefault(reason, []).append(name)
    return list(found.items())


def _parts(head: str, to: str) -> set[str]:
    """The parts of a model that a format has a place for.

    Google's models have a pooler throughout, used or not; Hugging Face's
    classes only where it is used.
    """
    unused = set() if to == "huggingface" else {"pooler"}
    return {*PARTS_OF_HEAD[head]} | unused


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
            f"expected --head, one of {', '.join(HEADS)}: the names in "
            f"{source.path} do not tell. Received: {head}"
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


def _check_vocabulary(source: Pretrained, config: BertConfig) -> None:
    """Raises InputError if the vocabulary is not the model's.

    A shorter one is logged: models are made with room for more words.
    """
    if source.vocab is None:
        return
    where = f"the vocabulary of {source.path}"
    vocab = load_vocab(source.vocab, where)
    if len(vocab) > config.vocab_size:
        raise InputError(
            f"expected at most {config.vocab_size} words in {where}, the "
            f"model's vocab_size. Received: {len(vocab)}; give the right "
            "--vocab_file"
        )
    warn_if_short(vocab, config.vocab_size, where)


def _kept_state(
    written: Sequence[str], state: Sequence[str], path: str
) -> list[str]:
    """The counters, and the slots of what is written.

    Raises:
      InputError: Training could not go on from them.
    """
    slots = [f"{n}/{slot}" for n in written for slot in ("adam_m", "adam_v")]
    there = set(state)
    lacking = [name for name in ["global_step", *slots] if name not in there]
    if lacking:
        raise InputError(
            f"expected Adam's slots and global_step in {path}. Received: a "
            f"checkpoint that lacks {len(lacking)} of them, {_few(lacking)}; "
            "leave --keep_optimizer away"
        )
    wanted = set(slots)
    return [n for n in state if n in wanted or not _SLOT.search(n)]


def _explain_missing(
    table: Mapping[str, Row],
    written: Sequence[str],
    head: str,
    to: str,
    path: str,
) -> dict[str, tuple[str, ...]]:
    """The gaps that are none, with the reason of each.

    Raises:
      InputError: There are others.
    """
    needed = {*PARTS_OF_HEAD[head]}
    if head == "encoder":
        needed.discard("pooler")
    possible = _parts(head, to)
    if to == "keras":
        possible |= {*_KERAS_PARTS.get(head, ())}
    there = set(written)
    missing = [n for n in table if table[n].part in possible and n not in there]
    begun = {table[n].part for n in written}
    faults = [n for n in missing if table[n].part in needed | begun]
    if faults:
        raise InputError(
            f"expected the variables of a model of kind {head} in {path}. "
            f"Received: a checkpoint that lacks {len(faults)} of them, "
            f"{_few(faults)}; see --head, and num_hidden_layers of the "
            "configuration"
        )
    reason = f"a model of kind {head} does without"
    if to == "keras":
        reason += "; zeros in the file"
    return _reasons((reason, missing))


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
