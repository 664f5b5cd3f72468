"""Conversion between formats, with a report on every variable."""

import dataclasses
import fnmatch
import importlib.util
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

import numpy as np
from keras import ops

from bert_tf.checkpoints import huggingface, keras_files, transformers_model
from bert_tf.checkpoints.checkpoint import Pretrained
from bert_tf.checkpoints.huggingface_names import HEADS, WeightName, rows
from bert_tf.checkpoints.weights import BOOKKEEPING, Selection
from bert_tf.config import BertConfig
from bert_tf.errors import in_file, listed, shortened, wrong_value
from bert_tf.tokenization.vocabulary_file import load_vocab, warn_if_short

_SLOT = re.compile(r"/adam_[mv]$")


@dataclasses.dataclass(frozen=True)
class Conversion:
    """A planned conversion; `str` gives the report.

    Attributes:
      source: The checkpoint to convert.
      target: The checkpoint with the head and the weights that are written.
      to: The format to write, one of `checkpoint.WRITTEN_FORMATS`.
      bookkeeping: Names of the optimizer slots and counters that are kept.
      left_over: Names of variables that are not written, by the reason.
      missing: Names of variables that a model with this head could have and the
        source lacks, by the reason why this is not an error.
    """

    source: Pretrained
    target: Pretrained
    to: str
    bookkeeping: tuple[str, ...]
    left_over: Mapping[str, Sequence[str]]
    missing: Mapping[str, Sequence[str]]

    def __str__(self) -> str:
        lines = []
        for title, end, rest in (
            ("read", self.source, f"from {self.source.path}"),
            ("written", self.target, f"as {self.target.head}"),
        ):
            shapes = end.weights.shapes
            names = [n for n in shapes if not BOOKKEEPING.match(n)]
            total = sum(math.prod(shapes[name]) for name in names)
            lines.append(
                f"{title:<11} {len(names)} variables, {total:,} numbers, {rest}"
            )
        if self.bookkeeping:
            lines.append(
                f"kept        {len(self.bookkeeping)} optimizer slots and "
                "counters"
            )
        for title, reasons in (
            ("left over", self.left_over),
            ("missing", self.missing),
        ):
            lines += [
                f"{title:<11} {len(names)}: {listed(names, most=3)} ({reason})"
                for reason, names in reasons.items()
            ] or [f"{title:<11} 0"]
        return "\n".join(lines)


def plan(
    source: Pretrained,
    to: str,
    head: str | None = None,
    keep_optimizer: bool = False,
    drop: Sequence[str] = (),
) -> Conversion:
    """Plans what happens to each variable, without writing anything.

    Args:
      source: The checkpoint to convert.
      to: The format to write, one of `checkpoint.WRITTEN_FORMATS`.
      head: The head to write, one of `HEADS`; None for the source's.
      keep_optimizer: Whether to keep Adam's slots and the step.
      drop: Patterns (`*`, `?`) of names of unknown variables to leave out.

    Raises:
      InputError: If a variable is missing, unknown or of another shape; the
        configuration or the head is unknown; or the format does not support
        the options.
    """
    path = source.path
    head = head or source.head
    config = _check_source(source, head)
    table = {row.ours: row for row in rows(config)}
    held = source.weights.shapes
    state = [n for n in held if BOOKKEEPING.match(n)]
    unknown = sorted({*held} - {*table} - {*state})
    _check_dropped(unknown, drop, path)
    parts = _parts(head, to)
    written = [n for n in table if n in held and table[n].part in parts]
    for name in written:
        if not table[name].fits(held[name]):
            raise in_file(
                path,
                f"{name} must have shape {_shape(table[name].shape)}, as the "
                f"configuration says; got {_shape(held[name])}. Pass the "
                "configuration of this checkpoint.",
            )
    bookkeeping = _kept_state(written, state, path) if keep_optimizer else []
    target = dataclasses.replace(
        source,
        head=head,
        weights=Selection(source.weights, written),
        labels=source.labels if "classes" in HEADS[head].parts else None,
    )
    left_over: dict[str, list[str]] = {}
    # Tensors of Hugging Face files that are not weights.
    for name, why in getattr(source.weights, "explained", {}).items():
        left_over.setdefault(why, []).append(name)
    left_over["drop"] = unknown
    left_over[f"not in a model with head {head} in the format {to}"] = [
        n for n in table if n in held and table[n].part not in parts
    ]
    left_over[
        "optimizer state; keep_optimizer keeps the state of the written weights"
    ] = sorted({*state} - {*bookkeeping})
    missing = _missing(table, written, head, to, path)
    reason = f"optional with head {head}"
    if to == "keras":
        reason += "; zeros in the file"
    return Conversion(
        source,
        target,
        to,
        tuple(bookkeeping),
        {why: names for why, names in left_over.items() if names},
        {reason: missing} if missing else {},
    )


def _check_source(source: Pretrained, head: str | None) -> BertConfig:
    """Returns the configuration, or raises InputError for what is unknown."""
    config, path = source.config, source.path
    if head not in HEADS:
        raise in_file(
            path,
            "the head cannot be determined from the names of the variables. "
            f"Pass `head`, one of {listed(HEADS, last='or')}.",
        )
    if config is None:
        raise in_file(
            path,
            "there is no bert_config.json beside the checkpoint. Pass "
            "`bert_config_file`.",
        )
    if source.vocab is not None:
        where = f"the vocabulary of {path}"
        vocab = load_vocab(source.vocab, where)
        if len(vocab) > config.vocab_size:
            raise in_file(
                path,
                f"the vocabulary has {len(vocab)} tokens, but vocab_size is "
                f"{config.vocab_size}. Pass the `vocab_file` of this "
                "checkpoint.",
            )
        warn_if_short(vocab, config.vocab_size, where)
    return config


def write(conversion: Conversion, folder: str) -> None:
    """Writes what was planned into an empty directory."""
    if conversion.to == "huggingface":
        huggingface.write(folder, conversion.target)
    elif conversion.to == "keras":
        keras_files.write(folder, conversion.target)
    else:
        # Needs TensorFlow, which may be missing on other backends of Keras.
        from bert_tf.checkpoints import google

        weights = conversion.source.weights
        bookkeeping = {name: weights[name] for name in conversion.bookkeeping}
        google.write(folder, conversion.target, bookkeeping or None)


def _parts(head: str, to: str) -> set[str]:
    """Returns the parts of a model that a format can hold.

    Google's models always have a pooler, Hugging Face's only if they use it.
    """
    unused = set() if to == "huggingface" else {"pooler"}
    return {*HEADS[head].parts} | unused


def _check_dropped(
    unknown: Sequence[str], patterns: Sequence[str], path: str
) -> None:
    """Raises InputError for an unmatched variable or an unused pattern."""
    names = list(unknown)
    for pattern in patterns:
        matched = fnmatch.filter(names, pattern)
        if not matched:
            raise wrong_value(
                "`drop`",
                f"a pattern of variables in {path} that are not BERT's",
                pattern,
            )
        names = [name for name in names if name not in matched]
    if names:
        raise in_file(
            path,
            f"variables are not BERT's: {listed(names, most=3)}. Leave them "
            "out with `drop`, or correct num_hidden_layers.",
        )


def _kept_state(
    written: Sequence[str], state: Sequence[str], path: str
) -> list[str]:
    """Returns counters and slots of the written weights.

    Raises:
      InputError: If one is missing.
    """
    slots = {f"{n}/{slot}" for n in written for slot in ("adam_m", "adam_v")}
    lacking = sorted({"global_step", *slots} - {*state})
    if lacking:
        raise in_file(
            path,
            f"{len(lacking)} of Adam's slots and global_step are missing: "
            f"{listed(lacking, most=3)}. Run without `keep_optimizer`.",
        )
    return [n for n in state if n in slots or not _SLOT.search(n)]


def _missing(
    table: Mapping[str, WeightName],
    written: Sequence[str],
    head: str,
    to: str,
    path: str,
) -> list[str]:
    """Returns the optional variables that the source lacks."""
    required = {*HEADS[head].parts}
    if head == "encoder":
        required.discard("pooler")
    possible = _parts(head, to)
    if to == "keras":
        # One class has both pre-training heads.
        same = [x for x in HEADS.values() if x.model == HEADS[head].model]
        possible.update(*(x.parts for x in same))
    held = set(written)
    missing = [n for n in table if table[n].part in possible and n not in held]
    required |= {table[n].part for n in written}
    faults = [n for n in missing if table[n].part in required]
    if faults:
        raise in_file(
            path,
            f"variables of a model with head {head} are missing: "
            f"{listed(faults, most=3)}. Correct `head`, or num_hidden_layers.",
        )
    return missing


def _shape(shape: Sequence[int]) -> str:
    return f"[{', '.join(str(size or 'any') for size in shape)}]"


# --verify: compares the written checkpoint with its source.

# For float32 programs that add in different orders.
TOLERANCE = 1e-4


def verify(conversion: Conversion, written: Pretrained) -> list[str]:
    """Compares the outputs of the written checkpoint with its source's.

    If `torch` and `transformers` are installed, the outputs of transformers'
    own model of each Hugging Face folder are compared too. Returns a line for
    each comparison.

    Raises:
      InputError: If outputs differ, or transformers cannot run a folder.
    """
    source = conversion.target
    assert source.config is not None
    assert source.head is not None
    batch = random_batch(source.config, source.head)
    expected = _outputs(source, batch)
    written = dataclasses.replace(written, head=source.head)
    results = {"the converted model": _outputs(written, batch)}
    if all(map(importlib.util.find_spec, ("torch", "transformers"))):
        for name, end in (("source", conversion.source), ("result", written)):
            folder = end.path
            if folder.endswith(".safetensors"):
                folder = os.path.dirname(folder) or "."
            if os.path.exists(os.path.join(folder, huggingface.CONFIG)):
                results[f"transformers' model of the {name}"] = (
                    _run_transformers(folder, source.head, batch)
                )
    lines = []
    for name, outputs in results.items():
        gap = max(np.abs(x - outputs[n]).max() for n, x in expected.items())
        if not gap <= TOLERANCE:  # False for NaN.
            raise in_file(
                written.path,
                f"the outputs of {name} differ from the source's by {gap:.3g}, "
                f"more than {TOLERANCE:g}. Nothing was written.",
            )
        lines.append(
            f"verified    outputs of {name} differ by {gap:.3g} (at most "
            f"{TOLERANCE:g})"
        )
    return lines


def random_batch(config: BertConfig, head: str) -> dict[str, np.ndarray]:
    """Returns features of three texts, int32 [3, S], or of one choice."""
    length = min(37, config.max_position_embeddings)
    shape = (1, 3, length) if head == "choice" else (3, length)
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, length, size=(*shape[:-1], 1))
    values = {
        "input_ids": generator.integers(config.vocab_size, size=shape),
        "input_mask": np.arange(length) <= lengths,
        "segment_ids": generator.integers(config.type_vocab_size, size=shape),
    }
    return {name: value.astype("int32") for name, value in values.items()}


def _outputs(pretrained: Pretrained, batch: Mapping) -> dict[str, np.ndarray]:
    """Returns the outputs of our model, without those of a random pooler."""
    assert pretrained.head is not None
    outputs = keras_files.build_model(pretrained)(dict(batch))
    names = [*HEADS[pretrained.head].outputs]
    if "bert/pooler/dense/kernel" not in pretrained.weights:
        # Without weights, each program initializes the pooler differently.
        names = [name for name in names if name != "pooled_output"]
    return {name: ops.convert_to_numpy(outputs[name]) for name in names}


def _run_transformers(
    folder: str, head: str, batch: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Returns the outputs of transformers' model, by this project's names.

    Raises:
      InputError: If the model cannot run.
    """
    with tempfile.TemporaryDirectory() as temporary:
        path = os.path.join(temporary, "arrays.npz")
        np.savez(path, **dict(batch))
        done = subprocess.run(
            [
                *(sys.executable, "-P", transformers_model.__file__),
                *(folder, HEADS[head].architecture, path),
            ],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
        )
        if done.returncode:
            reason = (done.stderr.strip() or "no message").splitlines()[-1]
            raise in_file(
                folder,
                "transformers cannot run this model, which ended with status "
                f"{done.returncode} and {shortened(reason, 200)}. Run without "
                "`verify`.",
            )
        with np.load(path) as arrays:
            outputs = HEADS[head].outputs.items()
            return {ours: arrays[theirs] for ours, theirs in outputs}
