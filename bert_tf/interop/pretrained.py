"""`Pretrained`: what a checkpoint holds, whichever format it came in."""

import contextlib
import dataclasses
import difflib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

from absl import logging

from bert_tf import files
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.tokenization.wordpiece import read_tokens
from bert_tf.training.weights import Weights

# Files for libraries that read local ones alone.


@contextlib.contextmanager
def local_file(path: str) -> Iterator[str]:
    """Where on this machine a file is, or, while the block runs, its copy.

    Raises:
      InputError: A remote file cannot be read.
    """
    if not files.is_remote(path):
        yield path
        return
    _, ending = os.path.splitext(path)
    with tempfile.NamedTemporaryFile(suffix=ending) as copy:
        with files.open_read(path) as remote:
            shutil.copyfileobj(remote, copy)
        copy.flush()
        yield copy.name


# `Pretrained`: what a checkpoint holds, whichever format it came in.


# What a model computes, and which weights it has beside the encoder's.
HEADS = (
    "encoder",
    "pretraining",
    "masked_lm",
    "next_sentence",
    "classifier",
    "choice",
    "token",
    "span",
)

# One number, one of the classes, or any of them; in the words of transformers,
# which chooses the loss by it.
PROBLEM_TYPES = (
    "regression",
    "single_label_classification",
    "multi_label_classification",
)

# What pre-training predicted of words.
OBJECTIVES = ("masked_lm", "causal_lm")

# How texts became features and answers in training; flags of the scripts.
TRAINED_WITH = (
    "max_seq_length",
    "doc_stride",
    "max_query_length",
    "version_2_with_negative",
)


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A model as it lies on disk, by the names and terms of this project.

    Every format has a `read` that gives one and a `write` that takes one. What
    a format does not tell is None.

    Attributes:
      path: Where it was read from, for messages.
      weights: The weights by their TF1 names, read when they are asked for.
      config: The configuration.
      vocab: The tokens in the order of their ids.
      do_lower_case: Whether the vocabulary is an uncased one.
      strip_accents: Whether accents are dropped. None does as `do_lower_case`,
        as where nothing is known of either.
      labels: The names of the classes, in the order of the logits.
      head: One of `HEADS`.
      problem_type: What a classifier's labels mean: one of `PROBLEM_TYPES`.
      classifier_dropout: The dropout before the classes, where it is another
        than that of the layers.
      objective: What its head for words predicts, one of `OBJECTIVES`: the
        token at a place, or the one behind it. None is the former.
      max_seq_length: The length that it was trained with.
      doc_stride: Questions: pieces from one window to the next in training.
      max_query_length: Questions: the pieces of a question that were kept.
      version_2_with_negative: Whether questions may have no answer.

    Raises:
      InputError: `head` is none of `HEADS`, `problem_type` none of
        `PROBLEM_TYPES`, or `objective` none of `OBJECTIVES`.
    """

    path: str
    weights: Weights
    config: BertConfig | None = None
    vocab: tuple[str, ...] | None = None
    do_lower_case: bool | None = None
    strip_accents: bool | None = None
    labels: tuple[str, ...] | None = None
    head: str | None = None
    problem_type: str | None = None
    classifier_dropout: float | None = None
    objective: str | None = None
    max_seq_length: int | None = None
    doc_stride: int | None = None
    max_query_length: int | None = None
    version_2_with_negative: bool | None = None

    def __post_init__(self) -> None:
        for name, known in (
            ("head", HEADS),
            ("problem_type", PROBLEM_TYPES),
            ("objective", OBJECTIVES),
        ):
            value = getattr(self, name)
            if value is not None and value not in known:
                raise InputError(
                    f"expected one of {', '.join(known)} as {name}. "
                    f"Received: {value!r} (in {self.path})"
                )

    @property
    def trained_with(self) -> dict[str, Any]:
        """What is known of `TRAINED_WITH`."""
        values = {name: getattr(self, name) for name in TRAINED_WITH}
        return {name: v for name, v in values.items() if v is not None}

    @property
    def bilstm_head(self) -> bool:
        """Whether its head stands on a BiLSTM, see `heads.TaskModel`."""
        return any(name.startswith("bilstm/") for name in self.weights.shapes)


# What lies beside a checkpoint: its configuration, vocabulary and facts.


CONFIG = "bert_config.json"
VOCABULARY = "vocab.txt"
FACTS = "bert_tf.json"
# Where there is one file with the weights, and Keras's.
KERAS_FILE = "model.keras"


def with_companions(pretrained: Pretrained, folder: str) -> Pretrained:
    """Adds what the files in `folder` say, as far as there are any.

    Raises:
      InputError: One of them is at fault.
    """
    return dataclasses.replace(pretrained, **read_companions(folder))


def read_companions(folder: str) -> dict[str, Any]:
    """What the files in a folder say, by the names of `Pretrained`.

    Raises:
      InputError: One of them is at fault.
    """
    config_file, vocab_file, facts_file = (
        os.path.join(folder, name) for name in (CONFIG, VOCABULARY, FACTS)
    )
    found: dict[str, Any] = {}
    if files.exists(config_file):
        found["config"] = BertConfig.from_json_file(config_file)
    if files.exists(vocab_file):
        # A fault in them matters where they are used to tokenize.
        found["vocab"] = tuple(read_tokens(vocab_file))
    if files.exists(facts_file):
        found |= _read_facts(facts_file)
    return found


def write_companions(folder: str, pretrained: Pretrained) -> None:
    """Writes what belongs beside the weights, as far as it is known."""
    if pretrained.config is not None:
        files.write_text(
            os.path.join(folder, CONFIG), pretrained.config.to_json_string()
        )
    if pretrained.vocab is not None:
        files.write_text(
            os.path.join(folder, VOCABULARY),
            "".join(f"{token}\n" for token in pretrained.vocab),
        )
    facts = {
        name: getattr(pretrained, name)
        for name in _FACTS
        if getattr(pretrained, name) is not None
    }
    if facts:
        text = json.dumps(facts, indent=2, sort_keys=True, ensure_ascii=False)
        files.write_text(os.path.join(folder, FACTS), text + "\n")


# The facts by name, and what each is in JSON.
_FACTS = {
    "do_lower_case": bool,
    "strip_accents": bool,
    "head": str,
    "labels": list,
    "problem_type": str,
    "classifier_dropout": float,
    "objective": str,
    "max_seq_length": int,
    "doc_stride": int,
    "max_query_length": int,
    "version_2_with_negative": bool,
}


def _read_facts(path: str) -> dict[str, Any]:
    """Returns the known facts; logs others, of later versions or misspelt."""
    values = files.read_json(path)
    for name in sorted(values.keys() - _FACTS.keys()):
        nearest = difflib.get_close_matches(name, _FACTS, n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        logging.warning("%s: ignoring the unknown key %r%s", path, name, hint)
    facts = {name: values[name] for name in _FACTS if name in values}
    for name, value in facts.items():
        # `isinstance` takes true for an integer.
        if type(value) is not _FACTS[name]:
            raise _wrong(name, value, path)
    labels = facts.get("labels", [])
    if not all(isinstance(label, str) for label in labels):
        raise _wrong("labels", labels, path)
    return facts | ({"labels": tuple(labels)} if "labels" in facts else {})


def _wrong(name: str, value: object, path: str) -> InputError:
    expected = "a list of words" if name == "labels" else _FACTS[name].__name__
    return InputError(
        f"expected {name} to be {expected} in {path}. Received: {value!r}"
    )
