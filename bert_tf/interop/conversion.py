"""From one format to another, with an account of every variable."""

import dataclasses
import fnmatch
import importlib.util
import math
import os
import re
from collections.abc import Mapping, Sequence

import numpy as np
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.interop import huggingface
from bert_tf.interop.checkpoint import HEADS, Pretrained
from bert_tf.interop.huggingface import (
    ARCHITECTURES,
    numbered_labels,
)
from bert_tf.interop.huggingface_names import PARTS_OF_HEAD, Row, rows
from bert_tf.interop.keras_files import build_model
from bert_tf.tokenization.wordpiece import load_vocab, warn_if_short
from bert_tf.training.weights import BOOKKEEPING, Selection, Weights

# From one format to another, with an account of every variable.


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


# Both ends of a conversion, run side by side on a batch of probes.


# Two programs that add in different orders, in float32.
TOLERANCE = 1e-4

# What transformers and PyTorch raise for a folder that they cannot run.
_FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
_LONGEST_REASON = 200

# What transformers calls an output, by what we call it.
_TRANSFORMERS_OUTPUTS = {
    "encoder": {
        "sequence_output": "last_hidden_state",
        "pooled_output": "pooler_output",
    },
    "pretraining": {
        "masked_lm_logits": "prediction_logits",
        "next_sentence_logits": "seq_relationship_logits",
    },
    "masked_lm": {"masked_lm_logits": "logits"},
    "next_sentence": {"next_sentence_logits": "logits"},
    "classifier": {"logits": "logits"},
    "choice": {"logits": "logits"},
    "token": {"logits": "logits"},
    "span": {"start_logits": "start_logits", "end_logits": "end_logits"},
}


@dataclasses.dataclass(frozen=True)
class Check:
    """Something compared.

    Attributes:
      what: What with what.
      difference: The largest, or a count.
      tolerance: What it may be.
      failure: Why it could not be compared, where that is so.
      is_skipped: Whether nothing written is at fault then.
    """

    what: str
    difference: float
    tolerance: float
    failure: str | None = None
    is_skipped: bool = False

    @property
    def holds(self) -> bool:
        """False for a fault; what was skipped has none, and is not "ok"."""
        if self.failure is not None:
            return self.is_skipped
        # Not "difference > tolerance" turned round: NaN shall not pass.
        return self.difference <= self.tolerance

    def __str__(self) -> str:
        if self.failure is not None:
            mark = "skipped" if self.is_skipped else "FAILED"
            return f"verified    {self.what}: {mark}, {self.failure}"
        mark = "ok" if self.holds else "FAILED"
        return (
            f"verified    {self.what}: {self.difference:.3g} (at most "
            f"{self.tolerance:g}) {mark}"
        )


def verify(conversion: Conversion, written: Pretrained) -> list[Check]:
    """Compares the files that were written with the checkpoint they came from.

    If `torch` and `transformers` are installed, their own model runs the
    Hugging Face folders too. A source folder that they cannot run is skipped;
    a written one that they cannot run is a failure.

    Args:
      conversion: The plan.
      written: The written checkpoint, opened again.

    Raises:
      InputError: If the written weights cannot be read.
    """
    source = conversion.target
    assert source.config is not None
    assert source.head is not None
    written = dataclasses.replace(written, head=source.head)
    probe = probe_batch(source.config, source.head)
    expected, found = _run(source, probe), _run(written, probe)
    checks = [
        Check("weights that differ", _different(conversion, written), 0),
        Check("facts that differ", _different_facts(source, written), 0),
        Check("outputs, read against written", _distance(expected, found), 0),
    ]
    if not has_transformers():
        return checks
    for end, pretrained in (("read", conversion.source), ("written", written)):
        folder = _huggingface_folder(pretrained)
        if folder:
            checks.append(
                _check_transformers(end, folder, source.head, probe, expected)
            )
    return checks


def _check_transformers(
    end: str,
    folder: str,
    head: str,
    probe: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
) -> Check:
    """Compares with what Hugging Face's own model makes of a folder."""
    what = f"outputs of what was {end}, in transformers"
    try:
        theirs = run_transformers(folder, head, probe)
    except (*_FAILURES, *_failures_of_hub()) as error:
        reason = " ".join(str(error).split())[:_LONGEST_REASON]
        return Check(
            what,
            float("nan"),
            TOLERANCE,
            failure=f"transformers itself cannot run {folder}: "
            f"{reason or type(error).__name__}",
            # Without a working installation nobody is to blame.
            is_skipped=end == "read" or isinstance(error, ImportError),
        )
    return Check(what, _distance(expected, theirs), TOLERANCE)


def _failures_of_hub() -> tuple[type[Exception], ...]:
    """What checks the types in a config.json raises this, and no ValueError."""
    from huggingface_hub import errors

    strict = getattr(errors, "StrictDataclassError", None)
    return () if strict is None else (strict,)


def probe_batch(config: BertConfig, head: str) -> dict[str, np.ndarray]:
    """Three rows of ids with padding and two segments: int32 [3, S].

    Every word is equally likely; a multiple-choice model gets one question
    with three choices, [1, 3, S].
    """
    length = min(37, config.max_position_embeddings)
    generator = np.random.default_rng(0)
    lengths = np.array([length, (length + 1) // 2, 1])[:, None]
    positions = np.arange(length)[None]
    mask = positions < lengths
    ids = generator.integers(config.vocab_size, size=mask.shape)
    segments = (positions >= lengths // 2) & (config.type_vocab_size > 1)
    batch = {
        "input_ids": ids * mask,
        "input_mask": mask,
        "segment_ids": segments & mask,
    }
    if head == "choice":
        batch = {name: values[None] for name, values in batch.items()}
    return {name: values.astype("int32") for name, values in batch.items()}


def _run(pretrained: Pretrained, probe: Mapping) -> dict[str, np.ndarray]:
    """The outputs of our model that a model of this head really has."""
    assert pretrained.head is not None
    outputs = build_model(pretrained)(dict(probe))
    names = [*_TRANSFORMERS_OUTPUTS[pretrained.head]]
    if "bert/pooler/dense/kernel" not in pretrained.weights:
        # Each program then has its own idea of a pooler.
        names = [name for name in names if name != "pooled_output"]
    return {name: ops.convert_to_numpy(outputs[name]) for name in names}


def has_transformers() -> bool:
    """Whether Hugging Face's own models can be run here."""
    return all(map(importlib.util.find_spec, ("torch", "transformers")))


def run_transformers(
    folder: str, head: str, probe: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The outputs of Hugging Face's model, by our names."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    model_class = getattr(transformers, ARCHITECTURES[head])
    model = model_class.from_pretrained(
        folder,
        local_files_only=True,
        use_safetensors=True,
        # Not the half precision that a config.json may ask for.
        dtype=torch.float32,
    ).eval()
    with torch.no_grad():
        outputs = model(
            input_ids=torch.from_numpy(probe["input_ids"]).long(),
            attention_mask=torch.from_numpy(probe["input_mask"]).long(),
            token_type_ids=torch.from_numpy(probe["segment_ids"]).long(),
        )
    return {
        ours: outputs[theirs].numpy()
        for ours, theirs in _TRANSFORMERS_OUTPUTS[head].items()
    }


def _huggingface_folder(pretrained: Pretrained) -> str | None:
    """The local folder of Hugging Face's files that it is from, or None."""
    folder = pretrained.path
    if folder.endswith(".safetensors"):
        folder = os.path.dirname(folder) or "."
    is_theirs = os.path.exists(os.path.join(folder, "config.json"))
    return folder if is_theirs else None


def _distance(ours: Mapping, theirs: Mapping) -> float:
    """The largest difference; NaN where one end alone is no number."""
    return float(np.max([_gap(ours[name], theirs[name]) for name in ours]))


def _gap(ours: np.ndarray, theirs: np.ndarray) -> float:
    if ours.shape != theirs.shape:
        return float("inf")
    # Infinities and NaN of both ends would differ by NaN.
    are_same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    with np.errstate(invalid="ignore"):
        return float(np.max(np.where(are_same, 0, np.abs(ours - theirs))))


def _different(conversion: Conversion, target: Pretrained) -> int:
    """How many variables are not the same, bit for bit."""
    names = [*conversion.target.weights.shapes, *conversion.bookkeeping]
    before, after = conversion.source.weights, target.weights
    return sum(
        name not in after or not _are_same(before[name], after[name])
        for name in names
    )


def _are_same(before: np.ndarray, after: np.ndarray) -> bool:
    """True for the same bits, or the same numbers in another precision."""
    before, after = np.asarray(before), np.asarray(after)
    if before.shape != after.shape:
        return False
    if before.dtype == after.dtype:
        return before.tobytes() == after.tobytes()
    return np.array_equal(before, after, equal_nan=True)


def _different_facts(source: Pretrained, target: Pretrained) -> int:
    """How much of the rest got lost or changed."""
    return sum(
        value not in (None, _facts(target)[name])
        for name, value in _facts(source).items()
    )


def _facts(pretrained: Pretrained) -> dict[str, object]:
    """All that is no weight; no labels where they are but numbers."""
    names = (
        "config",
        "vocab",
        "do_lower_case",
        "strip_accents",
        "labels",
        "problem_type",
        "classifier_dropout",
        "objective",
    )
    facts = {name: getattr(pretrained, name) for name in names}
    labels = pretrained.labels
    if labels is not None and labels == numbered_labels(len(labels)):
        facts["labels"] = None
    return facts
