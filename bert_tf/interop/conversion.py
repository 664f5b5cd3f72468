"""Conversion between formats, with a report on every variable."""

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
from bert_tf.errors import in_file, listed, wrong_value
from bert_tf.interop import huggingface, keras_files
from bert_tf.interop.checkpoint import Pretrained, require_keeps_optimizer
from bert_tf.interop.huggingface_names import HEADS, WeightName, rows
from bert_tf.tokenization.vocabulary_file import load_vocab, warn_if_short
from bert_tf.training.weights import BOOKKEEPING, Selection

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
    config = _check_source(source, head, to, keep_optimizer)
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


def _check_source(
    source: Pretrained, head: str | None, to: str, keep_optimizer: bool
) -> BertConfig:
    """Returns the configuration; raises InputError for impossible options."""
    config, path = source.config, source.path
    if keep_optimizer:
        require_keeps_optimizer(to)
    if head not in HEADS:
        raise in_file(
            path,
            "the head cannot be determined from the names of the variables. "
            f"Pass `head`, one of {listed(HEADS, last='or')}.",
        )
    if source.bilstm_head and head != "encoder":
        raise in_file(
            path,
            "no format supports a BiLSTM between encoder and head. "
            "`head=encoder` `drop='bilstm/*'` converts the encoder.",
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
        from bert_tf.interop import google

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

# What transformers and PyTorch raise for a folder that they cannot run.
_FAILURES = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError),
    *(LookupError, OSError, RuntimeError, TypeError, ValueError),
)


@dataclasses.dataclass(frozen=True)
class Check:
    """The result of a comparison.

    Attributes:
      what: What was compared.
      difference: The largest difference, or the number of differences.
      tolerance: The largest difference that is accepted.
      failure: Why the comparison was impossible, if it was.
      is_skipped: Whether the failure is not the fault of the written files.
    """

    what: str
    difference: float
    tolerance: float
    failure: str | None = None
    is_skipped: bool = False

    @property
    def holds(self) -> bool:
        """Whether no fault was found."""
        if self.failure is not None:
            return self.is_skipped
        # False for NaN.
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
    """Compares the written checkpoint, opened again, with its source.

    If `torch` and `transformers` are installed, the source's outputs are also
    compared with those of Hugging Face's own model from each Hugging Face
    folder. If that model cannot run, a source folder is skipped, and a written
    folder fails, unless an import failed.
    """
    source = conversion.target
    assert source.config is not None
    assert source.head is not None
    written = dataclasses.replace(written, head=source.head)
    probe = probe_batch(source.config, source.head)
    expected, outputs = _run(source, probe), _run(written, probe)
    before, after = conversion.source.weights, written.weights
    facts, new_facts = _facts(source), _facts(written)
    checks = [
        Check(
            "weights that differ",
            sum(
                name not in after or not _are_same(before[name], after[name])
                for name in (*source.weights.shapes, *conversion.bookkeeping)
            ),
            0,
        ),
        Check(
            "facts that differ",
            sum(v not in (None, new_facts[n]) for n, v in facts.items()),
            0,
        ),
        Check(
            "outputs of the source and the result",
            _distance(expected, outputs),
            0,
        ),
    ]
    if not has_transformers():
        return checks
    for end, pretrained in (("read", conversion.source), ("written", written)):
        folder = pretrained.path
        if folder.endswith(".safetensors"):
            folder = os.path.dirname(folder) or "."
        if os.path.exists(os.path.join(folder, huggingface.CONFIG)):
            checks.append(
                _check_transformers(end, folder, source.head, probe, expected)
            )
    return checks


def probe_batch(config: BertConfig, head: str) -> dict[str, np.ndarray]:
    """Returns a random batch with padding and two segments: int32 [3, S].

    A multiple choice model gets one question with three choices, [1, 3, S].
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
    """Returns the outputs of our model, without those of a random pooler."""
    assert pretrained.head is not None
    outputs = keras_files.build_model(pretrained)(dict(probe))
    names = [*HEADS[pretrained.head].outputs]
    if "bert/pooler/dense/kernel" not in pretrained.weights:
        # Without weights, each program initializes the pooler differently.
        names = [name for name in names if name != "pooled_output"]
    return {name: ops.convert_to_numpy(outputs[name]) for name in names}


def has_transformers() -> bool:
    """Returns whether Hugging Face's own models can run here."""
    return all(map(importlib.util.find_spec, ("torch", "transformers")))


def _check_transformers(
    end: str,
    folder: str,
    head: str,
    probe: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
) -> Check:
    """Compares with the outputs of Hugging Face's own model."""
    what = f"outputs of the {end} model, in transformers"
    try:
        theirs = run_transformers(folder, head, probe)
    except (*_FAILURES, *_failures_of_hub()) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        return Check(
            what,
            math.nan,
            TOLERANCE,
            f"transformers itself cannot run {folder}: {reason}",
            # A broken installation is not the fault of the files.
            is_skipped=end == "read" or isinstance(error, ImportError),
        )
    return Check(what, _distance(expected, theirs), TOLERANCE)


def _failures_of_hub() -> tuple[type[Exception], ...]:
    """Returns the errors that huggingface_hub raises for an invalid config.

    They are raised for wrong types in a config.json, and are not ValueErrors.
    """
    from huggingface_hub import errors

    strict = getattr(errors, "StrictDataclassError", None)
    return () if strict is None else (strict,)


def run_transformers(
    folder: str, head: str, probe: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Returns the outputs of Hugging Face's model, by this project's names."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    model_class = getattr(transformers, HEADS[head].architecture)
    model = model_class.from_pretrained(
        folder,
        local_files_only=True,
        use_safetensors=True,
        # A config.json may ask for half precision.
        dtype=torch.float32,
    ).eval()
    with torch.no_grad():
        outputs = model(
            input_ids=torch.from_numpy(probe["input_ids"]).long(),
            attention_mask=torch.from_numpy(probe["input_mask"]).long(),
            token_type_ids=torch.from_numpy(probe["segment_ids"]).long(),
        )
    pairs = HEADS[head].outputs.items()
    return {ours: outputs[theirs].numpy() for ours, theirs in pairs}


def _distance(ours: Mapping, theirs: Mapping) -> float:
    """Returns the largest difference; NaN if only one side has a NaN."""
    gaps = []
    for name, value in ours.items():
        if value.shape != theirs[name].shape:
            return math.inf
        # The difference of equal infinities would be NaN.
        both_nan = np.isnan(value) & np.isnan(theirs[name])
        are_same = (value == theirs[name]) | both_nan
        with np.errstate(invalid="ignore"):
            gap = np.abs(value - theirs[name])
        gaps.append(np.max(np.where(are_same, 0, gap)))
    return float(np.max(gaps))


def _are_same(before: np.ndarray, after: np.ndarray) -> bool:
    """Returns whether two arrays are equal.

    Arrays of one dtype must have equal bits, others equal numbers.
    """
    before, after = np.asarray(before), np.asarray(after)
    if before.shape != after.shape:
        return False
    if before.dtype == after.dtype:
        return before.tobytes() == after.tobytes()
    return np.array_equal(before, after, equal_nan=True)


def _facts(pretrained: Pretrained) -> dict[str, object]:
    """Returns the fields that every format records, besides the weights."""
    names = ("config", "vocab", "do_lower_case", "strip_accents", "labels")
    names += ("problem_type", "classifier_dropout", "objective")
    names += ("activation_fn",)
    facts = {name: getattr(pretrained, name) for name in names}
    labels = pretrained.labels
    if labels == huggingface.numbered_labels(len(labels or ())):
        facts["labels"] = None
    return facts
