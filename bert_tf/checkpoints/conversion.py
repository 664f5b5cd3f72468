"""Writes models: conversion between formats, and `save_pretrained`."""

import dataclasses
import fnmatch
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from bert_tf.base import files
from bert_tf.checkpoints import huggingface, keras_files
from bert_tf.checkpoints.checkpoint import Pretrained
from bert_tf.checkpoints.huggingface_names import HEADS, WeightName, rows
from bert_tf.checkpoints.weights import BOOKKEEPING, Selection, require_shape
from bert_tf.config import BertConfig
from bert_tf.errors import InputError, in_file, listed, wrong_value
from bert_tf.tokenization.vocabulary_file import load_vocab, require_fit
from bert_tf.version import __version__

_SLOT = re.compile(r"/adam_[mv]$")


@dataclasses.dataclass(frozen=True)
class Conversion:
    """A planned conversion; `str` gives the report.

    Attributes:
      source: The checkpoint to convert.
      target: The checkpoint with the head and the weights that are written.
      to: The format to write, one of `checkpoint.WRITTEN_FORMATS`.
      bookkeeping: Names of the optimizer slots and counters that are kept.
      left_over: The variables that are not written, with the reason.
      missing: Names of optional variables that the source lacks.
    """

    source: Pretrained
    target: Pretrained
    to: str
    bookkeeping: Sequence[str]
    left_over: Mapping[str, str]
    missing: Sequence[str]

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
        groups = [("kept", "for the optimizer", self.bookkeeping)]
        for reason in dict.fromkeys(self.left_over.values()):
            names = [n for n, why in self.left_over.items() if why == reason]
            groups.append(("left over", reason, names))
        groups.append(("missing", "optional", self.missing))
        lines += [
            f"{title:<11} {len(names)}: {listed(names, most=3)} ({reason})"
            for title, reason, names in groups
            if names
        ]
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
        configuration or the head is unknown; or the vocabulary is invalid.
    """
    path = source.path
    head = head or source.head
    config = _check_source(source, head)
    table = {row.ours: row for row in rows(config)}
    held = source.weights.shapes
    state = [n for n in held if BOOKKEEPING.match(n)]
    unknown = sorted({*held} - {*table} - {*state})
    _check_unknown(unknown, drop, path)
    # Google's models always have a pooler, Hugging Face's only if they use it.
    unused = set() if to == "huggingface" else {"pooler"}
    parts = {*HEADS[head].parts} | unused
    written = [n for n in table if n in held and table[n].part in parts]
    missing = _missing(table, written, parts, head, path)
    for name in written:
        sizes = [n or held["output_bias"][0] for n in table[name].shape]
        require_shape(source.weights, name, sizes)
    bookkeeping = _kept_state(written, state, path) if keep_optimizer else []
    target = dataclasses.replace(
        source,
        head=head,
        weights=Selection(source.weights, written),
        labels=source.labels if "classes" in HEADS[head].parts else None,
    )
    # Hugging Face files may store counters, and copies of weights.
    left_over = dict(getattr(source.weights, "explained", {}))
    left_over |= dict.fromkeys(unknown, "drop")
    for name in held:
        if name in table and table[name].part not in parts:
            left_over[name] = f"not in the {head} model of the format {to}"
    left_over |= dict.fromkeys(
        sorted({*state} - {*bookkeeping}),
        "state of an optimizer; keep_optimizer keeps it",
    )
    return Conversion(source, target, to, bookkeeping, left_over, missing)


def _check_source(source: Pretrained, head: str | None) -> BertConfig:
    """Checks head, configuration and vocabulary; returns the configuration."""
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
        require_fit(load_vocab(source.vocab, where), config.vocab_size, where)
    return config


def write(conversion: Conversion, folder: str) -> None:
    """Writes what was planned into an empty directory."""
    if conversion.to == "huggingface":
        huggingface.write(folder, conversion.target)
    elif conversion.to == "keras":
        keras_files.write(folder, conversion.target)
    else:
        # Needs TensorFlow, which may be missing on other backends of Keras.
        from bert_tf.checkpoints import tf1

        weights = conversion.source.weights
        bookkeeping = {name: weights[name] for name in conversion.bookkeeping}
        tf1.write_pretrained(folder, conversion.target, bookkeeping or None)


def _check_unknown(
    unknown: Sequence[str], drop: Sequence[str], path: str
) -> None:
    """Raises InputError for a variable that no pattern matches."""
    dropped = {n for pattern in drop for n in fnmatch.filter(unknown, pattern)}
    if names := [name for name in unknown if name not in dropped]:
        raise in_file(
            path,
            f"variables are not BERT's: {listed(names, most=3)}. Leave them "
            "out with `drop`, or correct num_hidden_layers.",
        )


def _kept_state(
    written: Sequence[str], state: Sequence[str], path: str
) -> list[str]:
    """Returns the names of the counters and of the written weights' slots.

    Raises:
      InputError: If one is missing.
    """
    slots = {f"{n}/{slot}" for n in written for slot in ("adam_m", "adam_v")}
    lacking = sorted({"global_step", *slots} - {*state})
    if lacking:
        raise in_file(
            path,
            f"{len(lacking)} variables of Adam's state are missing: "
            f"{listed(lacking, most=3)}. Run without `keep_optimizer`.",
        )
    return [n for n in state if n in slots or not _SLOT.search(n)]


def _missing(
    table: Mapping[str, WeightName],
    written: Sequence[str],
    parts: set[str],
    head: str,
    path: str,
) -> list[str]:
    """Returns the missing variables; raises InputError if they are needed."""
    held = {*written}
    missing = [n for n in table if table[n].part in parts and n not in held]
    required = {*HEADS[head].parts}
    if head == "encoder":
        required.discard("pooler")
    required |= {table[n].part for n in written}
    faults = [n for n in missing if table[n].part in required]
    if faults:
        raise in_file(
            path,
            f"variables of a model with head {head} are missing: "
            f"{listed(faults, most=3)}. Correct `head`, or num_hidden_layers.",
        )
    return missing


# --verify: compares the written checkpoint with its source.

# Two float32 models may add in different orders.
TOLERANCE = 1e-4


def verify(conversion: Conversion, written: Pretrained) -> str:
    """Compares the outputs of the written checkpoint with its source's.

    Returns a line for the report.

    Raises:
      InputError: If outputs differ.
    """
    source = conversion.target
    assert source.config is not None
    assert source.head is not None
    batch = random_batch(source.config, source.head)
    expected = _outputs(source, batch)
    found = _outputs(dataclasses.replace(written, head=source.head), batch)
    gap = max(np.abs(x - found[name]).max() for name, x in expected.items())
    if not gap <= TOLERANCE:  # False for NaN.
        raise in_file(
            written.path,
            f"the outputs of the converted model differ from the source's by "
            f"{gap:.3g}, more than {TOLERANCE:g}. Nothing was written.",
        )
    return f"verified    outputs differ by {gap:.3g} (at most {TOLERANCE:g})"


def random_batch(config: BertConfig, head: str) -> dict[str, np.ndarray]:
    """Returns features of three texts, or of a choice of three."""
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
    """Returns the outputs of a checkpoint's model."""
    outputs = keras_files.build_model(pretrained)(batch)
    return {name: ops.convert_to_numpy(x) for name, x in outputs.items()}


# `save_pretrained` of the public classes.

# The formats of `save_pretrained` -> the formats of conversions.
_SAVED_FORMATS = {"huggingface": "huggingface", "tf1": "google"}


def as_checkpoint(
    model: keras.Model, tokenizer: Any = None, **facts: Any
) -> Pretrained:
    """Returns a model as the checkpoint that `save` writes."""
    weights = keras_files.ModelWeights(model, model.name)
    if tokenizer is not None:
        facts["vocab"] = tuple(tokenizer.vocabulary)
        facts["do_lower_case"] = tokenizer.do_lower_case
        follows = tokenizer.strip_accents == tokenizer.do_lower_case
        facts["strip_accents"] = None if follows else tokenizer.strip_accents
    return dataclasses.replace(
        model.checkpoint or Pretrained(model.name, weights),
        path=model.name,
        weights=weights,
        config=model.config,
        **{**facts, "head": keras_files.head_of_model(model, weights)},
    )


def save(
    model: keras.Model,
    folder: str | os.PathLike[str],
    format: str,
    tokenizer: Any = None,
    **facts: Any,
) -> None:
    """Writes a model; see `FeatureModel.save_pretrained`.

    Args:
      model: The model.
      folder: A new or empty folder.
      format: A key of `_SAVED_FORMATS`.
      tokenizer: Its `vocabulary`, `do_lower_case` and `strip_accents` are
        written.
      **facts: Further fields of `Pretrained`.
    """
    path = files.path_text(folder, "The folder")
    if format not in [*_SAVED_FORMATS]:
        formats = listed(_SAVED_FORMATS, last="or", quote=True)
        raise wrong_value("format", formats, format)
    if not model.built:
        model.build()
    if not keras_files.heads_of(type(model)):
        raise InputError(
            f"{type(model).__name__} has no counterpart in other libraries. "
            "Save it with model.save('NAME.keras')."
        )
    keras_files.warn_of_random(model, "Call fit first: the part is not written")
    options = model.get_config()
    if "dropout" in options:
        facts["classifier_dropout"] = options["dropout"]
    saved = as_checkpoint(model, tokenizer, **facts)
    planned = plan(saved, _SAVED_FORMATS[format])
    with files.atomic_directory(path) as temporary:
        write(planned, temporary)
        name = HEADS[saved.head].model
        card = _card(planned.target, name, is_tf1=format == "tf1")
        files.write_text(os.path.join(temporary, "README.md"), card)


def _card(pretrained: Pretrained, class_name: str, *, is_tf1: bool) -> str:
    """Returns the model card of a model that is written to a folder.

    It has no licence, data or scores, which only the author knows.

    Args:
      pretrained: The model.
      class_name: The name of the model's class in bert_tf.
      is_tf1: Whether the folder has a TF1 checkpoint, which transformers
        cannot load, instead of Hugging Face's files.
    """
    config, head = pretrained.config, HEADS[pretrained.head or ""]
    assert config is not None
    library, pipeline = "transformers", head.pipeline
    architecture = head.architecture
    if pretrained.head == "encoder" and pretrained.pooling is not None:
        class_name = "TextEmbedder"
        if pretrained.pooling != "pooled":
            library, pipeline = "sentence-transformers", "sentence-similarity"
            architecture = "SentenceTransformer"
    facts = f"library_name: {library}\n"
    other_library = f"The class in {library} is {architecture}."
    if is_tf1:
        facts = ""
        other_library = (
            "The weights are a TF1 checkpoint, bert_model.ckpt, as "
            "google-research/bert saves it."
        )
    if pipeline:
        facts += f"pipeline_tag: {pipeline}\n"
    size = f"L-{config.num_hidden_layers}_H-{config.hidden_size}"
    return f"""---
{facts}tags:
- bert
---

# BERT {size}_A-{config.num_attention_heads}: {class_name}

Written by bert_tf {__version__}. To load it from this folder:

```python
import bert_tf

model = bert_tf.{class_name}.from_pretrained("FOLDER")
```

{other_library}
"""
