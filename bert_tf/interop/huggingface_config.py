"""Hugging Face's `config.json`: a BertConfig, a kind of head, labels.

The file holds what concerns training and generation too, and what other
versions knew. Keys that would change what the model computes are checked, the
others passed over.
"""

import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from absl import logging

from bert_tf import files
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.interop.huggingface_names import PARTS_OF_HEAD, head_of_parts
from bert_tf.interop.pretrained import PROBLEM_TYPES

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


def read(path: str) -> Described:
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
            _labels(values),
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


def _labels(values: Mapping[str, Any]) -> tuple[str, ...] | None:
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
