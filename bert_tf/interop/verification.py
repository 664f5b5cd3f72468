"""Both ends of a conversion, run side by side on a batch of probes."""

import contextlib
import dataclasses
import importlib.util
import os
from collections.abc import Iterator, Mapping

import numpy as np
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.interop.assembly import build_model
from bert_tf.interop.conversion import Conversion
from bert_tf.interop.huggingface import (
    ARCHITECTURES,
    numbered_labels,
)
from bert_tf.interop.opening import open_pretrained
from bert_tf.interop.pretrained import Pretrained

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


def verify(
    conversion: Conversion, folder: str, name: str | None = None
) -> list[Check]:
    """Reads what was written and compares it with what it was made from.

    Where an end is Hugging Face's and `torch` and `transformers` are
    installed, their own model takes part. What was read may be a folder that
    they cannot run; what was written has to be none.

    Args:
      conversion: What was planned.
      folder: Where it was written.
      name: What messages call `folder`, where it is a temporary one.

    Returns:
      What was compared.

    Raises:
      InputError: What was written cannot be read.
    """
    source = conversion.target
    assert source.config is not None
    assert source.head is not None
    probe = probe_batch(source.config, source.head)
    expected = _run(source, probe)
    with _named(folder, name or folder):
        target = open_pretrained(folder)
        target = dataclasses.replace(target, head=source.head)
        found = _run(target, probe)
    checks = [
        Check("weights that differ", _different(conversion, target), 0),
        Check("facts that differ", _different_facts(source, target), 0),
        Check("outputs, read against written", _distance(expected, found), 0),
    ]
    if not has_transformers():
        return checks
    for end, pretrained in (("read", conversion.source), ("written", target)):
        home = _huggingface_folder(pretrained)
        if home:
            check = _check_transformers(end, home, source.head, probe, expected)
            shown = (check.failure or "").replace(folder, name or folder)
            checks.append(
                dataclasses.replace(check, failure=shown) if shown else check
            )
    return checks


@contextlib.contextmanager
def _named(folder: str, name: str) -> Iterator[None]:
    """Lets messages name `name` for `folder`."""
    try:
        yield
    except InputError as error:
        raise InputError(str(error).replace(folder, name)) from error


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
