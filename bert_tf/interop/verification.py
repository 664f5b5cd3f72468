"""Both ends of a conversion, run side by side on a batch of probes."""

import dataclasses
import importlib.util
import os
from collections.abc import Mapping

import numpy as np
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.interop.assembly import build_model
from bert_tf.interop.conversion import Conversion
from bert_tf.interop.huggingface_config import ARCHITECTURES
from bert_tf.interop.opening import open_pretrained
from bert_tf.interop.pretrained import Pretrained

# Two programs that add in different orders, in float32.
TOLERANCE = 1e-4

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
    """

    what: str
    difference: float
    tolerance: float

    @property
    def holds(self) -> bool:
        # Not "difference > tolerance" turned round: NaN shall not pass.
        return self.difference <= self.tolerance

    def __str__(self) -> str:
        mark = "ok" if self.holds else "FAILED"
        return (
            f"verified    {self.what}: {self.difference:.3g} (at most "
            f"{self.tolerance:g}) {mark}"
        )


def verify(conversion: Conversion, folder: str) -> list[Check]:
    """Reads what was written and compares it with what it was made from.

    Where an end is Hugging Face's and `torch` and `transformers` are
    installed, their own model takes part.

    Args:
      conversion: What was planned.
      folder: Where it was written.

    Returns:
      What was compared.

    Raises:
      InputError: What was written cannot be read.
    """
    source, target = conversion.target, open_pretrained(folder)
    target = dataclasses.replace(target, head=source.head)
    assert source.config is not None
    assert source.head is not None
    probe = probe_batch(source.config, source.head)
    expected = _run(source, probe)
    checks = [
        Check("weights that differ", _different(conversion, target), 0),
        Check("facts that differ", _different_facts(source, target), 0),
        Check(
            "outputs, read against written",
            _distance(expected, _run(target, probe)),
            0,
        ),
    ]
    for end, pretrained in (("read", conversion.source), ("written", target)):
        folder = _huggingface_folder(pretrained)
        if folder and has_transformers():
            theirs = run_transformers(folder, source.head, probe)
            checks.append(
                Check(
                    f"outputs of what was {end}, in transformers",
                    _distance(expected, theirs),
                    TOLERANCE,
                )
            )
    return checks


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
    return {
        name: ops.convert_to_numpy(outputs[name])
        for name in _TRANSFORMERS_OUTPUTS[pretrained.head]
    }


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
        folder, local_files_only=True, use_safetensors=True
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
    return max(
        float(np.max(np.abs(ours[name] - theirs[name]))) for name in ours
    )


def _different(conversion: Conversion, target: Pretrained) -> int:
    """How many variables are not the same, bit for bit."""
    names = [*conversion.target.weights.shapes, *conversion.bookkeeping]
    before, after = conversion.source.weights, target.weights
    return sum(
        name not in after or not np.array_equal(before[name], after[name])
        for name in names
    )


def _different_facts(source: Pretrained, target: Pretrained) -> int:
    """How much of the rest got lost or changed."""
    names = ("config", "vocab", "do_lower_case", "labels")
    return sum(
        getattr(source, name) not in (None, getattr(target, name))
        for name in names
    )
