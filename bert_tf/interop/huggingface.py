"""Hugging Face folders: read, and written as transformers itself does.

    config.json                         configuration, kind of head, labels
    model.safetensors                   the weights, or
    model.safetensors.index.json        ... the list of their shards
    vocab.txt, tokenizer_config.json    vocabulary and casing

Free of TensorFlow and PyTorch.
"""

import dataclasses
import json
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from absl import logging

from bert_tf import files
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.interop import (
    checkpoint,
    huggingface_names,
    huggingface_tokenizer,
    huggingface_weights,
)
from bert_tf.interop.checkpoint import PROBLEM_TYPES, Pretrained
from bert_tf.interop.huggingface_names import PARTS_OF_HEAD, head_of_parts
from bert_tf.interop.huggingface_tokenizer import Tokenizer
from bert_tf.interop.huggingface_weights import (
    HuggingFaceWeights,
    from_ours,
    parts_of,
    weights_of,
)
from bert_tf.training.weights import Weights

# Hugging Face's `config.json`: a BertConfig, a kind of head, labels.


FILE = "config.json"

ARCHITECTURES = {
    "encoder": "BertModel",
    "pretraining": "BertForPreTraining",
    "masked_lm": "BertForMaskedLM",
    "next_sentence": "BertForNextSentencePrediction",
    "classifier": "BertForSequenceClassification",
    "choice": "BertForMultipleChoice",
    "token": "BertForTokenClassification",
    "span": "BertForQuestionAnswering",
}
_HEADS = {name: head for head, name in ARCHITECTURES.items()}
# What transformers 2 to 5 call the two forms of GELU. The first is ours too.
_ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu": "gelu_erf",
    "gelu_python": "gelu_erf",
    "relu": "relu",
    "tanh": "tanh",
    "linear": "linear",
}

# What an absent key means there; Google's code has 16 types.
_DEFAULTS = {"hidden_act": "gelu", "type_vocab_size": 2}

# What a key must be, where it is there at all, and what else it would mean.
_REQUIRED: dict[str, tuple[Any, str]] = {
    "layer_norm_eps": (1e-12, "this project's layer norms add 1e-12"),
    "position_embedding_type": ("absolute", "others have other weights"),
    "is_decoder": (False, "it would look to the left only"),
    "add_cross_attention": (False, "it would look at another text too"),
}


@dataclasses.dataclass(frozen=True)
class Described:
    """What a `config.json` says.

    Attributes:
      path: The file.
      config: The configuration.
      architecture: The name of the class that wrote it, if it says.
      labels: The names of the classes, if they were given any.
      problem_type: What the labels mean, if it says.
      classifier_dropout: The dropout before the classes, if it has its own.
      is_tied: Whether masked LM uses the matrix of the embeddings.
    """

    path: str
    config: BertConfig
    architecture: str | None
    labels: tuple[str, ...] | None
    problem_type: str | None
    classifier_dropout: float | None
    is_tied: bool

    def head(self, parts: Collection[str]) -> str | None:
        """The kind of head, of those that the weights allow.

        Args:
          parts: The parts of the model that there are weights of.

        Returns:
          One of `PARTS_OF_HEAD`; None if neither class nor weights tell.

        Raises:
          InputError: The class has parts that the weights lack.
        """
        said = _HEADS.get(self.architecture or "")
        if said is None:
            return head_of_parts(parts)
        lacking = set(PARTS_OF_HEAD[said]) - set(parts)
        # Models without a pooler are common, and none of these is used.
        if said == "encoder":
            lacking.discard("pooler")
        if lacking:
            raise InputError(
                f"expected the weights of a {self.architecture}, as "
                f"{self.path} says. Received: none of its {min(lacking)}; "
                "correct 'architectures' (BertModel is the encoder alone)"
            )
        # Google's checkpoints were published as a BertForMaskedLM, pooler and
        # next sentence included.
        whole = set(PARTS_OF_HEAD["pretraining"])
        simpler = set(PARTS_OF_HEAD[said]) < whole
        return "pretraining" if simpler and whole <= {*parts} else said


def read_config(path: str) -> Described:
    """Reads a `config.json`.

    Raises:
      InputError: It cannot be read, is of another model than BERT, or of a
        BERT that computes what this project does not.
    """
    values = files.read_json(path)
    try:
        _check_kind(values)
        described = Described(
            path,
            _config(values),
            _architecture(values),
            _labels_of_config(values),
            _problem_type(values),
            _classifier_dropout(values),
            is_tied=_is_tied(values),
        )
    except InputError as error:
        raise InputError(f"{error} (in {path})") from None
    _warn_of_other_class(described)
    return described


def to_json(
    config: BertConfig,
    head: str,
    labels: Sequence[str] | None = None,
    pad_token_id: int | None = 0,
    problem_type: str | None = None,
    classifier_dropout: float | None = None,
) -> str:
    """The text of a `config.json`.

    Args:
      config: The configuration.
      head: One of `PARTS_OF_HEAD`.
      labels: The names of the classes; None where the head has none. Where
        two are called the same, `id2label` has both, and `label2id`, which
        cannot, the first, with a warning.
      pad_token_id: The id of [PAD].
      problem_type: What the labels mean, if that is known.
      classifier_dropout: The dropout before the classes; None for that of
        the layers.

    Raises:
      InputError: The model looks to the left alone. There is a decoder in
        transformers, but it pools [CLS], which sees nothing but itself.
    """
    if config.is_left_to_right:
        raise InputError(
            "expected a model that looks both ways, for transformers pools "
            f"[CLS] whatever it sees. Received: attention_direction="
            f"{config.attention_direction!r}"
        )
    values = {
        **config.to_dict(),
        "add_cross_attention": False,
        "architectures": [ARCHITECTURES[head]],
        "classifier_dropout": classifier_dropout,
        "dtype": "float32",
        "hidden_act": _their_activation(config.hidden_act),
        "is_decoder": False,
        "layer_norm_eps": 1e-12,
        "model_type": "bert",
        "pad_token_id": pad_token_id,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
    }
    if problem_type is not None:
        values["problem_type"] = problem_type
    if labels is not None:
        values["id2label"] = dict(enumerate(labels))
        values["label2id"] = _ids_of_labels(labels)
    text = json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False)
    return text + "\n"


def numbered_labels(count: int) -> tuple[str, ...]:
    """What Hugging Face calls classes that have no names."""
    return tuple(f"LABEL_{n}" for n in range(count))


def _ids_of_labels(labels: Sequence[str]) -> dict[str, int]:
    """The number of each label; the first of those that share a name."""
    ids = {label: labels.index(label) for label in labels}
    shared = [label for label in ids if labels.count(label) > 1]
    if shared:
        logging.warning(
            "Classes share the name %s: label2id gives the number of the "
            "first alone, id2label has them all",
            ", ".join(map(repr, shared)),
        )
    return ids


def _check_kind(values: Mapping[str, Any]) -> None:
    kind = values.get("model_type", "bert")
    if kind != "bert":
        raise InputError(f"expected model_type 'bert'. Received: {kind!r}")
    architecture = _architecture(values)
    if architecture == "BertLMHeadModel":
        raise InputError(
            "expected a BERT that looks both ways. Received: "
            "'BertLMHeadModel', which looks to the left only"
        )
    for key, (expected, why) in _REQUIRED.items():
        value = values.get(key)
        if value is not None and value != expected:
            raise InputError(
                f"expected {key} {expected!r}. Received: {value!r}; {why}"
            )


def _config(values: Mapping[str, Any]) -> BertConfig:
    names = [field.name for field in dataclasses.fields(BertConfig)]
    kept = {name: values[name] for name in names if name in values}
    kept = {**_DEFAULTS, **kept}
    kept["hidden_act"] = _our_activation(kept["hidden_act"])
    return BertConfig.from_dict(kept)


def _our_activation(name: Any) -> str:
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise InputError(
            f"expected hidden_act to be one of {', '.join(_ACTIVATIONS)}. "
            f"Received: {name!r}"
        )
    return _ACTIVATIONS[name]


def _their_activation(name: str) -> str:
    return next(theirs for theirs, ours in _ACTIVATIONS.items() if ours == name)


def _architecture(values: Mapping[str, Any]) -> str | None:
    names = values.get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str):
        return names[0]
    return None


def _warn_of_other_class(described: Described) -> None:
    """Says in one line that the class which wrote a model is not known."""
    if described.architecture not in (None, *_HEADS):
        logging.warning(
            "%s was written by the class %r, which is none of %s: it is read "
            "as a BERT, and its weights alone tell its head",
            described.path,
            described.architecture,
            ", ".join(_HEADS),
        )


def _labels_of_config(values: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The labels by their numbers; None where they are but numbers."""
    given = values.get("id2label")
    if not given:
        return None
    if not isinstance(given, dict) or {*given} != {
        *map(str, range(len(given)))
    }:
        raise InputError(
            "expected id2label to name the classes '0', '1', '2', and so on. "
            f"Received: {str(given)[:60]}"
        )
    for number, label in given.items():
        if isinstance(label, bool) or not isinstance(label, str | int | float):
            raise InputError(
                f"expected a name for class {number} in id2label. Received: "
                f"{str(label)[:60]}"
            )
    labels = tuple(str(given[str(n)]) for n in range(len(given)))
    # Any other order of such names says which class of another model is meant.
    return None if labels == numbered_labels(len(labels)) else labels


def _problem_type(values: Mapping[str, Any]) -> str | None:
    value = values.get("problem_type")
    if value is not None and value not in PROBLEM_TYPES:
        raise InputError(
            f"expected problem_type to be one of {', '.join(PROBLEM_TYPES)}. "
            f"Received: {value!r}"
        )
    return value


def _classifier_dropout(values: Mapping[str, Any]) -> float | None:
    value = values.get("classifier_dropout")
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < 1:
        raise InputError(
            "expected classifier_dropout to be a number from 0 to below 1. "
            f"Received: {value!r}"
        )
    return float(value)


def _is_tied(values: Mapping[str, Any]) -> bool:
    """Absent and null mean what they mean to transformers."""
    value = values.get("tie_word_embeddings")
    if value is not None and not isinstance(value, bool):
        raise InputError(
            "expected tie_word_embeddings to be true, false or null. "
            f"Received: {value!r}"
        )
    return value is not False


# Hugging Face folders: read, and written as transformers itself does.


# The heads whose classes have names.
_WITH_LABELS = ("classifier", "token")


def is_folder(path: str) -> bool:
    """True for a directory with Hugging Face's files, be they refused.

    A TF1 checkpoint goes before weights that are refused.
    """
    if not files.is_directory(path):
        return False
    names = files.listdir(path)
    if huggingface_weights.WHOLE in names or huggingface_weights.INDEX in names:
        return True
    is_theirs = FILE in names or checkpoint.find_unsupported(names)
    return bool(is_theirs) and not any(n.endswith(".index") for n in names)


def read(path: str) -> Pretrained:
    """Reads a folder; its weights are read when they are asked for.

    Args:
      path: The folder, its safetensors file or the index of its shards. What
        describes the model is read from the same folder.

    Raises:
      InputError: A file is missing, damaged, or not that of a BERT that this
        project can compute.
    """
    file = _find(path)
    folder = os.path.dirname(file)
    config_file = os.path.join(folder, FILE)
    described = read_config(config_file)
    weights = HuggingFaceWeights(
        huggingface_weights.open_tensors(file), described.config
    )
    _check_tied(described, weights)
    head = described.head(weights.parts)
    tokenizer = huggingface_tokenizer.read(folder, described.config.vocab_size)
    return Pretrained(
        path=path,
        weights=weights,
        config=described.config,
        vocab=tokenizer.vocab,
        do_lower_case=tokenizer.do_lower_case,
        strip_accents=tokenizer.strip_accents,
        # A config.json may name two classes where a model has none.
        labels=_labels(described.labels, weights, head),
        head=head,
        problem_type=described.problem_type,
        classifier_dropout=described.classifier_dropout,
    )


def write(folder: str, pretrained: Pretrained) -> tuple[str, ...]:
    """Writes a folder that transformers loads with `from_pretrained`.

    Args:
      folder: An existing directory.
      pretrained: The model. Its config must be known, and its head, unless the
        names of the weights tell.

    Returns:
      The names of the weights that are left out: Hugging Face's class for the
      head has none of them.

    Raises:
      InputError: The config or the head is not known; a weight is missing, of
        another shape, or none of BERT's; the model looks to the left alone; or
        the folder cannot be written to.
    """
    config, weights = pretrained.config, pretrained.weights
    if config is None:
        raise InputError(
            f"expected a configuration with {pretrained.path}, for "
            f"{FILE}. Received: none"
        )
    head = _head_of(pretrained, config)
    tensors = from_ours(weights, config, head)
    labels = _labels(pretrained.labels, weights, head)
    if labels is None and head in _WITH_LABELS:
        labels = numbered_labels(_num_classes(weights))
    # Refused is what it cannot describe, before anything is written.
    description = to_json(
        config,
        head,
        labels,
        huggingface_tokenizer.pad_token_id(pretrained.vocab),
        pretrained.problem_type,
        pretrained.classifier_dropout,
    )
    huggingface_weights.write(
        os.path.join(folder, huggingface_weights.WHOLE),
        {row.their_name(head): value for row, value in tensors.items()},
    )
    files.write_text(os.path.join(folder, FILE), description)
    tokenizer = Tokenizer(
        pretrained.vocab, pretrained.do_lower_case, pretrained.strip_accents
    )
    model_max_length = config.max_position_embeddings
    huggingface_tokenizer.write(folder, tokenizer, model_max_length)
    written = {row.ours for row in tensors}
    return tuple(n for n in sorted(weights_of(weights)) if n not in written)


def _find(path: str) -> str:
    """The file of weights that a path means; refuses what is never opened."""
    if not files.is_directory(path):
        if checkpoint.find_unsupported([path]):
            raise checkpoint.unsupported_format(path)
        if not files.exists(path):
            raise InputError(
                f"expected a Hugging Face folder at {path}. Received: nothing "
                "of that name"
            )
        return path
    names = files.listdir(path)
    for name in (huggingface_weights.WHOLE, huggingface_weights.INDEX):
        if name in names:
            return os.path.join(path, name)
    other = checkpoint.find_unsupported(names)
    if other:
        raise checkpoint.unsupported_format(os.path.join(path, other))
    raise InputError(
        f"expected {huggingface_weights.WHOLE} in {path}. Received: a folder "
        "without; give one that save_pretrained wrote"
    )


def _check_tied(described: Described, weights: HuggingFaceWeights) -> None:
    """Raises InputError if masked LM has a matrix of its own, now lost.

    One that is in the file was compared with the embeddings' already.
    """
    if (
        not described.is_tied
        and "masked_lm" in weights.parts
        and huggingface_names.DECODER not in weights.explained
    ):
        raise InputError(
            f"expected tie_word_embeddings True for a masked LM. Received: "
            f"False in {described.path}, without {huggingface_names.DECODER} "
            f"in {weights.path}; masked LM has no matrix of its own here"
        )


def _head_of(pretrained: Pretrained, config: BertConfig) -> str:
    """The kind of head, told or seen from the weights."""
    head = pretrained.head or head_of_parts(
        parts_of(pretrained.weights, config)
    )
    if head is None:
        raise InputError(
            f"expected the kind of head of {pretrained.path}. Received: "
            "weights that fit more than one; say which of "
            f"{', '.join(PARTS_OF_HEAD)}"
        )
    return head


def _labels(
    labels: tuple[str, ...] | None, weights: Weights, head: str | None
) -> tuple[str, ...] | None:
    """The labels of a head whose classes have any; None of another head.

    Raises:
      InputError: There are more or fewer classes than the head should have.
    """
    if head == "choice" and _num_classes(weights) != 1:
        raise InputError(
            "expected one score for a choice. Received: output_bias with "
            f"{_num_classes(weights)} classes in {weights.path}"
        )
    if head not in (None, *_WITH_LABELS) or "output_bias" not in weights:
        return None
    if labels is not None and len(labels) != _num_classes(weights):
        raise InputError(
            f"expected {_num_classes(weights)} labels, as there are classes "
            f"in {weights.path}. Received: {len(labels)}, "
            f"{', '.join(map(repr, labels[:4]))}"
        )
    return labels


def _num_classes(weights: Weights) -> int:
    return weights.shapes["output_bias"][0]
