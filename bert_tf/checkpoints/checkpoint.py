"""`Pretrained`: the contents of a checkpoint, in any of the formats.

Also reads and writes this project's files beside the weights, checks other
projects' JSON files, and refuses weight files in unsupported formats.
"""

import contextlib
import dataclasses
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from bert_tf.base import files
from bert_tf.checkpoints.huggingface_names import HEADS, rows
from bert_tf.checkpoints.released import MODELS
from bert_tf.checkpoints.weights import Weights, require_shape
from bert_tf.config import BertConfig, is_number, is_positive
from bert_tf.errors import (
    InputError,
    did_you_mean,
    in_file,
    listed,
    wrong_value,
)
from bert_tf.tokenization.vocabulary_file import read_tokens

# JSON files of models from other sources. Keys without a check are ignored, and
# null means that a key is absent.


class Check(NamedTuple):
    """What the value of a key must be.

    Attributes:
      is_valid: The test.
      requirement: Its description, for messages.
    """

    is_valid: Callable[[Any], bool]
    requirement: str


def are_texts(values: Any) -> bool:
    """Returns whether a value is a list of strings."""
    return isinstance(values, list) and all(isinstance(x, str) for x in values)


def one_of(choices: Collection[Any]) -> Check:
    """Returns the check that a value is one of the choices."""
    text = listed(choices, last="or", quote=True)
    requirement = f"one of {text}" if len(choices) > 1 else text
    return Check(lambda value: value in [*choices], requirement)


BOOLEAN = Check(lambda value: isinstance(value, bool), "true, false or null")
TEXT = Check(lambda value: isinstance(value, str), "a string")
TEXTS = Check(are_texts, "a list of strings")
# Floats too: many tokenizers have the length 1e30, which means no limit.
COUNT = Check(
    lambda x: is_number(x) and x >= 1 and x == int(x), "a positive integer"
)
POSITIVE = Check(is_positive, "a positive number")
RATE = Check(lambda x: is_number(x) and 0 <= x < 1, "a number in [0, 1)")
OBJECT = Check(lambda value: isinstance(value, dict), "an object")
TEXT_BY_NAME = Check(
    lambda value: isinstance(value, dict) and are_texts([*value.values()]),
    "an object whose values are strings",
)


def read_settings(
    folder: str, name: str, checks: Mapping[str, Check]
) -> dict[str, Any]:
    """Reads and checks a file of a folder; returns {} if it is missing.

    Raises InputError if the path leads out of the folder or a value is wrong.
    """
    path = files.find_in(folder, name)
    return {} if path is None else read_json(path, checks)


def read_json(path: str, checks: Mapping[str, Check], kind: type = dict) -> Any:
    """Reads and checks a file that must exist; its value is a `kind`."""
    files.require_file(path)
    return parse(files.read_text(path), path, checks, kind)


def parse(
    text: str, where: str, checks: Mapping[str, Check], kind: type = dict
) -> Any:
    """Parses and checks the JSON of a file, whose name is `where`."""
    values = files.parse_json(text, where, kind)
    # Such a string would fail much later, when it is encoded in UTF-8.
    if not files.is_utf8(json.dumps(values, ensure_ascii=False)):
        raise in_file(where, "a string has half of a surrogate pair.")
    for key, (is_valid, requirement) in checks.items():
        value = values.get(key)
        if value is not None and not is_valid(value):
            raise wrong_value(f"{where}: {key}", requirement, value)
    return values


def write_json(path: str, values: Mapping[str, Any]) -> None:
    """Writes a file in the form of transformers: sorted, with line breaks."""
    text = json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False)
    files.write_text(path, text + "\n")


# The formats that can be read, in words, and the names of those that can be
# written.
READ_FORMATS = (
    "a TF1 checkpoint (DIR/bert_model.ckpt, or DIR), a Hugging Face folder "
    "(with config.json and model.safetensors), hf://OWNER/NAME[@REVISION], a "
    ".keras file, or the name of one of Google's models, such as "
    "uncased_L-12_H-768_A-12"
)
WRITTEN_FORMATS = ("google", "huggingface", "keras")

# The names that transformers uses to choose a classifier's loss.
PROBLEM_TYPES = (
    "regression",
    "single_label_classification",
    "multi_label_classification",
)


def have_names(labels: Collection[str]) -> bool:
    """Returns whether any name differs from Hugging Face's LABEL_0 ..."""
    return not all(re.fullmatch(r"LABEL_\d+", label) for label in labels)


# The target of the language model head in pre-training.
OBJECTIVES = ("masked_lm", "causal_lm")


def _recorded(check: Check, *, of_training: bool = False) -> Any:
    """Declares a field of `Pretrained` that `bert_tf.json` records.

    Args:
      check: What a value in the file must be.
      of_training: Whether the field describes the training, mostly how texts
        became features. It is the default of a job's option of this name, if
        the option is declared as `recorded`.
    """
    metadata = {"check": check, "of_training": of_training}
    return dataclasses.field(default=None, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A checkpoint, with this project's names.

    Each format has a function `read`, which returns a `Pretrained`, and one
    that writes it. A field is None if it is not recorded.

    Attributes:
      path: The file or folder that was read, for messages.
      weights: The weights by their TF1 names, read on access.
      config: The configuration.
      vocab: The tokens in the order of their ids.
      do_lower_case: Whether the vocabulary is uncased.
      strip_accents: Whether the tokenizer removes accents; None means the same
        as `do_lower_case`.
      labels: The names of the classes, in the order of the logits.
      head: A key of `HEADS`.
      kind: The kind of task; None for the library's kinds, whose name is
        `head`. See `FineTuningTask`.
      problem_type: What a classifier's labels mean, one of `PROBLEM_TYPES`.
      classifier_dropout: The dropout rate before the output layer.
      activation_fn: The PyTorch class that a cross-encoder of
        sentence-transformers applies to its logits.
      objective: The target of the language model head, one of `OBJECTIVES`:
        the token at a position, or the next token. None means the former.
      max_seq_length: The sequence length in training.
      doc_stride: Tokens between the starts of two windows of a text.
      window_pooling: Classifiers and embeddings: how windows become one answer,
        one of `tasks.encoding.WINDOW_POOLINGS`. None if texts are not split
        into windows.
      max_query_length: Questions: the most tokens of a question.
      version_2_with_negative: Whether questions may have no answer.
      pooling: Embeddings: see `TextEmbedder`.
      normalize: Embeddings: whether they have length 1.
      is_pair: Classifiers: whether the inputs are pairs of texts.
      prompts: Embeddings: the prefixes of texts, by the name of their use, such
        as "query".
      default_prompt_name: The key of the prompt that is used by default.
      unsupported_modules: Parts of a sentence-transformers model that this
        project cannot compute.
    """

    path: str
    weights: Weights
    config: BertConfig | None = None
    vocab: tuple[str, ...] | None = None
    do_lower_case: bool | None = _recorded(BOOLEAN)
    strip_accents: bool | None = _recorded(BOOLEAN)
    labels: tuple[str, ...] | None = _recorded(TEXTS)
    head: str | None = _recorded(one_of(HEADS))
    kind: str | None = _recorded(TEXT, of_training=True)
    problem_type: str | None = _recorded(one_of(PROBLEM_TYPES))
    classifier_dropout: float | None = _recorded(RATE)
    activation_fn: str | None = _recorded(TEXT)
    objective: str | None = _recorded(one_of(OBJECTIVES))
    max_seq_length: int | None = _recorded(COUNT, of_training=True)
    doc_stride: int | None = _recorded(COUNT, of_training=True)
    window_pooling: str | None = _recorded(TEXT, of_training=True)
    max_query_length: int | None = _recorded(COUNT, of_training=True)
    version_2_with_negative: bool | None = _recorded(BOOLEAN, of_training=True)
    pooling: str | None = _recorded(TEXT, of_training=True)
    normalize: bool | None = _recorded(BOOLEAN, of_training=True)
    is_pair: bool | None = _recorded(BOOLEAN, of_training=True)
    prompts: Mapping[str, str] | None = _recorded(TEXT_BY_NAME)
    default_prompt_name: str | None = _recorded(TEXT)
    unsupported_modules: tuple[str, ...] = ()

    @property
    def trained_with(self) -> dict[str, Any]:
        """How texts became features in training, as far as it is known."""
        values = {name: getattr(self, name) for name in _TRAINED_WITH}
        return {name: v for name, v in values.items() if v is not None}


# The files beside the weights of a TF1 checkpoint or a .keras file.

CONFIG = "bert_config.json"
VOCABULARY = "vocab.txt"
METADATA = "bert_tf.json"
# The Keras model in a folder that `keras_files.write` wrote.
KERAS_FILE = "model.keras"
# PEFT's file that describes LoRA adapters.
ADAPTERS = "adapter_config.json"

# The keys of bert_tf.json; see `_recorded`.
_RECORDED = {
    field.name: field.metadata
    for field in dataclasses.fields(Pretrained)
    if field.metadata
}
_CHECKS = {name: facts["check"] for name, facts in _RECORDED.items()}
_TRAINED_WITH = [n for n, facts in _RECORDED.items() if facts["of_training"]]


def require_checkpoint(path: str) -> bool:
    """Returns whether there are files at a path; False for a model's name.

    Accepts what `pretrained.open_pretrained` takes, except hf://.

    Raises:
      InputError: There are no files, and Google has no model of this name.
    """
    if re.match(r"(https?|hf)://", path, re.IGNORECASE):
        advice = "Write hf://OWNER/NAME for a model of the Hub, or download it."
        raise wrong_value("The checkpoint", READ_FORMATS, path, advice)
    if files.exists(path) or files.exists(f"{path}.index"):
        return True
    if path in MODELS:
        return False
    raise in_file(
        path,
        f"there is no such checkpoint; expected {READ_FORMATS}."
        f"{_suggest_model(path)}",
    )


def _suggest_model(path: str) -> str:
    """Returns " Did you mean 'NAME'?", or "" if `path` is not like a name."""
    if path.startswith(("/", ".")) or files.is_remote(path):
        return ""
    # A truncated name may be closer to another model's name.
    cut = [name for name in MODELS if name.startswith(path)]
    if suggestion := did_you_mean(path, cut or MODELS):
        return suggestion
    # The names that transformers has for models.
    if re.fullmatch(r"bert-[\w.-]+", path):
        return f" Did you mean 'hf://google-bert/{path}'?"
    owner, _, name = path.partition("/")
    # "out/model.ckpt-10" is a mistyped path.
    is_name = re.fullmatch(r"[\w.-]+", name) and "ckpt" not in name
    if is_name and not files.exists(owner):
        return f" Did you mean 'hf://{path}'?"
    return ""


def require_sizes(config: BertConfig, weights: Weights) -> None:
    """Compares the sizes of a configuration with an encoder's weights.

    Only shapes are read. Call it before a model is made: a model with wrong
    sizes may not fit into memory.

    Raises:
      InputError: If a shape differs, or a weight is missing.
    """
    for weight in rows(config):
        if weight.part == "encoder":
            require_shape(weights, weight.ours, weight.shape)


def with_metadata(pretrained: Pretrained, folder: str) -> Pretrained:
    """Adds the configuration, the vocabulary and the metadata in a folder."""
    metadata = _read_recorded(folder)
    if config_file := files.find_in(folder, CONFIG):
        metadata["config"] = BertConfig.from_json_file(config_file)
    if vocab_file := files.find_in(folder, VOCABULARY):
        # Not validated: an invalid vocabulary matters only to tokenizers.
        metadata["vocab"] = tuple(read_tokens(vocab_file))
    return dataclasses.replace(pretrained, **metadata)


def write_metadata(folder: str, pretrained: Pretrained) -> None:
    """Writes the files that `with_metadata` reads, for the fields not None."""
    if pretrained.config is not None:
        files.write_text(
            os.path.join(folder, CONFIG), pretrained.config.to_json_string()
        )
    if pretrained.vocab is not None:
        write_vocabulary(folder, pretrained.vocab)
    write_recorded(folder, {n: getattr(pretrained, n) for n in _CHECKS})


def read_trained_with(folder: str) -> dict[str, Any]:
    """Reads `trained_with` beside files in another project's format."""
    metadata = _read_recorded(folder)
    return {name: metadata[name] for name in _TRAINED_WITH if name in metadata}


def write_recorded(folder: str, values: Mapping[str, Any]) -> None:
    """Writes the values that are not None, if any, to `bert_tf.json`."""
    values = {name: v for name, v in values.items() if v is not None}
    if values:
        write_json(os.path.join(folder, METADATA), values)


def write_vocabulary(folder: str, vocab: Iterable[str]) -> None:
    """Writes `vocab.txt`."""
    text = "".join(f"{token}\n" for token in vocab)
    files.write_text(os.path.join(folder, VOCABULARY), text)


def _read_recorded(folder: str) -> dict[str, Any]:
    """Returns the known keys of the metadata."""
    values = read_settings(folder, METADATA, _CHECKS)
    metadata = {
        name: values[name] for name in _CHECKS if values.get(name) is not None
    }
    for name, value in metadata.items():
        if _CHECKS[name] is COUNT:
            metadata[name] = int(value)
    if "labels" in metadata:
        metadata["labels"] = tuple(metadata["labels"])
    return metadata


@contextlib.contextmanager
def local_file(path: str) -> Iterator[str]:
    """Yields `path` if it is local, or else the path of a temporary copy."""
    if not files.is_remote(path):
        yield path
        return
    _, extension = os.path.splitext(path)
    with tempfile.NamedTemporaryFile(suffix=extension) as copy:
        with files.open_read(path) as remote:
            shutil.copyfileobj(remote, copy)
        copy.flush()
        yield copy.name


# Weight files in formats that are never opened.

_PICKLE = "is a pickle, and opening one runs code of its author"
_UNSUPPORTED = {
    **dict.fromkeys((".bin", ".pt", ".pth", ".ckpt", ".pkl"), _PICKLE),
    ".h5": "is HDF5, the TensorFlow format of transformers 4",
    ".msgpack": "is the Flax format of transformers 4",
}

# Prefixes of weight files; other files may hold optimizers or settings.
_LIKELY = ("pytorch_model", "tf_model", "flax_model")


def find_unsupported(names: Iterable[str]) -> str | None:
    """Returns the most likely weight file in an unsupported format, or None."""
    unsupported = [name for name in names if name.endswith((*_UNSUPPORTED,))]
    return min(
        unsupported,
        key=lambda name: (not name.startswith(_LIKELY), name),
        default=None,
    )


def unsupported_format(path: str, repository: str | None = None) -> InputError:
    """Returns the error for an unsupported file: the reason and what to do.

    Args:
      path: The file.
      repository: The Hub repository that has the file; None for a local file.
    """
    folder, name = os.path.split(path)
    reason = next(x for end, x in _UNSUPPORTED.items() if name.endswith(end))
    prefix, library = "", "transformers"
    if name.startswith("adapter_"):
        prefix, library = "adapter_", "PEFT"
    return InputError(
        f"{repository or folder or '.'} has no {prefix}model.safetensors; "
        f"{name} {reason}. Write the model again with save_pretrained of "
        f'{library}: see "Formats that are not read" in '
        "docs/guide/checkpoints.md."
    )
