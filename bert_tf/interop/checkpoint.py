"""`Pretrained`: what a checkpoint holds, whichever format it came in."""

import contextlib
import dataclasses
import difflib
import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

from absl import logging

from bert_tf import files
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.tokenization.wordpiece import read_tokens
from bert_tf.training.weights import Weights

# `Pretrained`: what a checkpoint holds, whichever format it came in.


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


# Files of weights that are never opened: why, and what to do instead.


PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
# How a pickle begins, and the archive that torch.save puts one in.
_BEGINNINGS = (b"\x80", b"PK")
_TENSORFLOW = ".h5"
_FLAX = ".msgpack"

# The usual names first: beside them lie optimizers and settings.
_ORDER = ("pytorch_model", "tf_model", "flax_model", "")

# Paths are arguments: in the code, a path could end its string and run.
# torch.load with weights_only reads tensors and runs nothing.
_FROM_PICKLE = (
    "import sys, torch, safetensors.torch as s; w = torch.load(sys.argv[1], "
    "weights_only=True); s.save_file({k: v.clone() for k, v in w.items()}, "
    "sys.argv[2], {'format': 'pt'})"
)
_FROM_OTHER = (
    "import sys, transformers as t; f = sys.argv[1]; "
    "c = t.AutoConfig.from_pretrained(f); getattr(t, c.architectures[0])"
    ".from_pretrained(f, %s=True).save_pretrained(f)"
)


def find_unsupported(names: Iterable[str]) -> str | None:
    """Returns the first weight file in an unsupported format, or None."""
    known = (*PICKLES, _TENSORFLOW, _FLAX)
    found = [name for name in names if name.endswith(known)]
    return min(found, key=_rank, default=None)


def unsupported_format(path: str, repository: str | None = None) -> InputError:
    """Returns the error for such a file: the reason and how to convert it.

    Args:
      path: The file, or where it will be once it is downloaded.
      repository: Where it is to be downloaded from, of the Hub.
    """
    if _is_something_else(path):
        return _unknown(path)
    folder = os.path.dirname(path) or "."
    arguments = [folder]
    if path.endswith(PICKLES):
        reason = "a pickle, and to open one is to run what its author wrote"
        needs, code = "torch and safetensors", _FROM_PICKLE
        arguments = [path, os.path.join(folder, "model.safetensors")]
    elif path.endswith(_TENSORFLOW):
        reason = "the format of transformers before 5 for TensorFlow"
        needs = "'transformers<5', torch and tf-keras"
        code = _FROM_OTHER % "from_tf"
    else:
        reason = "the format of transformers before 5 for Flax"
        needs = "'transformers<5', torch and flax"
        code = _FROM_OTHER % "from_flax"
    command = f'python -c "{code}" {shlex.join(arguments)}'
    if repository:
        download = ["hf", "download", repository, "--local-dir", folder]
        command = f"{shlex.join(download)} && {command}"
    return InputError(
        f"expected model.safetensors in {repository or folder}. Received: "
        f"{os.path.basename(path)}, which is {reason}; to convert it, in an "
        f"environment with {needs}: {command}"
    )


def _is_something_else(path: str) -> bool:
    """True for a file that is not what its name promises."""
    if path.endswith(PICKLES):
        return files.exists(path) and not _begins_as_pickle(path)
    is_keras = path.endswith(_TENSORFLOW)
    return is_keras and not os.path.basename(path).startswith("tf_model")


def _begins_as_pickle(path: str) -> bool:
    if files.is_directory(path):
        return False
    with files.open_read(path) as file:
        return file.read(2).startswith(_BEGINNINGS)


def _unknown(path: str) -> InputError:
    """What to raise for a file of a format that only its maker knows."""
    if path.endswith(_TENSORFLOW):
        reason, remedy = (
            "an HDF5 file, which may be anybody's",
            "load it with the program that made it, and save a .keras file or "
            "safetensors",
        )
    else:
        reason, remedy = (
            "neither that nor what torch.save writes",
            "a TF1 checkpoint is PREFIX.index with PREFIX.data-*; one of the "
            "older form, in one file, is to be saved again by a tf.train.Saver",
        )
    return InputError(
        f"expected model.safetensors or a TF1 checkpoint. Received: {path}, "
        f"which is {reason}; {remedy}"
    )


def _rank(name: str) -> tuple[int, str]:
    place = next(n for n, start in enumerate(_ORDER) if name.startswith(start))
    return place, name
