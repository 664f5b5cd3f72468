"""Hugging Face folders, read and written as transformers does.

    config.json                         configuration, kind of head, labels
    model.safetensors                   the weights, or
    model.safetensors.index.json        ... the list of their shards
    vocab.txt, tokenizer_config.json    vocabulary and casing
    bert_tf.json                        how texts became features, if recorded
    modules.json ...                    sentence-transformers' files, if any

Does not need TensorFlow or PyTorch.
"""

import dataclasses
import json
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from absl import logging

from bert_tf.base import files
from bert_tf.checkpoints import (
    huggingface_tokenizer,
    huggingface_weights,
    sentence_transformers,
    settings_files,
)
from bert_tf.checkpoints.checkpoint import (
    ADAPTERS,
    PROBLEM_TYPES,
    Pretrained,
    find_unsupported,
    read_trained_with,
    unsupported_format,
    write_trained_with,
)
from bert_tf.checkpoints.huggingface_names import DECODER, HEADS, head_of_parts
from bert_tf.checkpoints.huggingface_weights import (
    INDEX,
    WHOLE,
    HuggingFaceWeights,
)
from bert_tf.checkpoints.settings_files import BOOLEAN, RATE, Check, are_texts
from bert_tf.checkpoints.weights import Weights
from bert_tf.config import BertConfig, is_number
from bert_tf.errors import InputError, in_file, listed, shortened, wrong_value


def is_folder(path: str) -> bool:
    """Returns whether a path is a folder of Hugging Face's files.

    The weights may be in a format that is refused, unless there is a TF1
    checkpoint too.
    """
    if not files.is_directory(path):
        return False
    names = files.listdir(path)
    if {WHOLE, INDEX, ADAPTERS} & {*names}:
        return True
    is_theirs = CONFIG in names or find_unsupported(names) is not None
    return is_theirs and not any(n.endswith(".index") for n in names)


def read(path: str) -> Pretrained:
    """Reads a folder. Its weights are read on access.

    The path is the folder, its safetensors file or the index of its shards.
    Raises InputError if a file is missing or damaged, or is not for a BERT that
    this project can compute.
    """
    file = _find_weights(path)
    folder = os.path.dirname(file)
    described = read_config(os.path.join(folder, CONFIG))
    weights = HuggingFaceWeights(
        huggingface_weights.open_tensors(file), described.config
    )
    if (
        not described.is_tied
        and "masked_lm" in weights.parts
        # A decoder in the file was compared with the embeddings.
        and DECODER not in weights.explained
    ):
        raise in_file(
            described.path,
            f"tie_word_embeddings is false, but {weights.path} has no "
            f"{DECODER}. bert_tf's masked LM always uses the embedding matrix.",
        )
    head = described.head(weights.parts)
    tokenizer = huggingface_tokenizer.read(folder, described.config.vocab_size)
    embedding = sentence_transformers.read(
        folder, described.config.max_position_embeddings
    )
    is_lowered = embedding.pop("do_lower_case", False)
    if is_lowered and tokenizer.do_lower_case is False:
        # Lower-cased texts in a cased vocabulary keep their accents.
        tokenizer = dataclasses.replace(
            tokenizer,
            do_lower_case=True,
            strip_accents=bool(tokenizer.strip_accents),
        )
    return Pretrained(
        path=path,
        weights=weights,
        config=described.config,
        vocab=tokenizer.vocab,
        do_lower_case=tokenizer.do_lower_case,
        strip_accents=tokenizer.strip_accents,
        # A config.json may name two classes for a model without classes.
        labels=_labels_of_head(described.labels, weights, head),
        head=head,
        problem_type=described.problem_type,
        classifier_dropout=described.classifier_dropout,
        activation_fn=described.activation_fn if head == "classifier" else None,
        **{**read_trained_with(folder), **embedding},
    )


def write(folder: str, pretrained: Pretrained) -> None:
    """Writes a folder that transformers loads with `from_pretrained`.

    Weights that Hugging Face's class for the head lacks are not written.

    Args:
      folder: An existing directory.
      pretrained: A checkpoint that `conversion.plan` accepts.

    Raises:
      InputError: If the number of labels or of choices is wrong, float32
        cannot represent a weight, or the model is left-to-right.
    """
    config, head = pretrained.config, pretrained.head
    weights = pretrained.weights
    assert config is not None
    assert head is not None
    labels = _labels_of_head(pretrained.labels, weights, head)
    if labels is None and HEADS[head].has_labels:
        labels = numbered_labels(_num_classes(weights))
    vocab = pretrained.vocab
    pad_token_id: int | None = 0
    if vocab is not None:
        pad_token_id = vocab.index("[PAD]") if "[PAD]" in vocab else None
    # Before anything is written, since it can fail.
    config_json = to_json(
        config,
        head,
        labels,
        pad_token_id,
        pretrained.problem_type,
        pretrained.classifier_dropout,
        pretrained.activation_fn,
    )
    huggingface_weights.write(
        os.path.join(folder, WHOLE),
        huggingface_weights.HuggingFaceTensors(weights, config, head),
    )
    files.write_text(os.path.join(folder, CONFIG), config_json)
    tokenizer = huggingface_tokenizer.TokenizerSettings(
        vocab, pretrained.do_lower_case, pretrained.strip_accents
    )
    huggingface_tokenizer.write(
        folder, tokenizer, config.max_position_embeddings
    )
    write_trained_with(folder, pretrained)
    if head == "encoder" and pretrained.pooling is not None:
        sentence_transformers.write(folder, pretrained)


def _find_weights(path: str) -> str:
    """Returns the weight file that a path refers to."""
    if not files.is_directory(path):
        if find_unsupported([path]):
            raise unsupported_format(path)
        if not files.exists(path):
            raise in_file(path, "there is no such Hugging Face folder.")
        return path
    names = files.listdir(path)
    for name in (WHOLE, INDEX):
        if name in names:
            return os.path.join(path, name)
    if ADAPTERS in names:
        settings = settings_files.read(path, ADAPTERS, {})
        raise in_file(
            path,
            "this folder has PEFT adapters, not a model. Load the model that "
            "they belong to "
            f"({shortened(settings.get('base_model_name_or_path'))}), then "
            "call load_lora_weights with this folder.",
        )
    other = find_unsupported(names)
    if other:
        raise unsupported_format(os.path.join(path, other))
    raise in_file(
        path,
        f"this folder has no {WHOLE}. Pass a folder that save_pretrained "
        "wrote.",
    )


def _labels_of_head(
    labels: tuple[str, ...] | None, weights: Weights, head: str | None
) -> tuple[str, ...] | None:
    """Returns the labels if the head has named classes, else None."""
    if head == "choice" and _num_classes(weights) != 1:
        raise in_file(
            weights.path,
            "output_bias of a multiple choice model must have 1 element; got "
            f"{_num_classes(weights)}.",
        )
    is_named = head is None or HEADS[head].has_labels
    if not is_named or "output_bias" not in weights:
        return None
    if labels is not None and len(labels) != _num_classes(weights):
        raise in_file(
            weights.path,
            f"there are {_num_classes(weights)} classes, but {len(labels)} "
            f"labels: {listed(labels, most=4, quote=True)}.",
        )
    return labels


def _num_classes(weights: Weights) -> int:
    return weights.shapes["output_bias"][0]


# config.json: the configuration, the head and the labels.

CONFIG = "config.json"

_HEADS = {x.architecture: head for head, x in HEADS.items()}
# The names of transformers 2 to 5 for both forms of GELU and others. The first
# name of each is the one that is written.
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


def _only(value: Any) -> Check:
    return Check(lambda x: x == value, repr(value))


# What the values must be, unless they are absent or null.
_CHECKS = {
    "model_type": _only("bert"),
    "layer_norm_eps": _only(1e-12),
    "position_embedding_type": _only("absolute"),
    "is_decoder": _only(False),
    "add_cross_attention": _only(False),
    "architectures": Check(
        lambda value: are_texts(value) and "BertLMHeadModel" not in value,
        "a list of strings without BertLMHeadModel, which is a decoder",
    ),
    "hidden_act": Check(
        lambda value: isinstance(value, str) and value in _ACTIVATIONS,
        f"one of {listed(_ACTIVATIONS, last='or')}",
    ),
    "problem_type": Check(
        lambda value: value in PROBLEM_TYPES,
        f"one of {listed(PROBLEM_TYPES, last='or')}",
    ),
    "classifier_dropout": RATE,
    "tie_word_embeddings": BOOLEAN,
    "id2label": Check(
        lambda value: (
            isinstance(value, dict)
            and {*value} == {*map(str, range(len(value)))}
            and all(isinstance(x, str) or is_number(x) for x in value.values())
        ),
        "an object with a name for each of the classes '0', '1', '2', ...",
    ),
}


@dataclasses.dataclass(frozen=True)
class ConfigFile:
    """The contents of a `config.json`; see also `Pretrained`.

    Attributes:
      architecture: The name of the class that wrote it, if recorded.
      is_tied: Whether masked LM uses the embedding matrix.
    """

    path: str
    config: BertConfig
    architecture: str | None
    labels: tuple[str, ...] | None
    problem_type: str | None
    classifier_dropout: float | None
    activation_fn: str | None
    is_tied: bool

    def head(self, parts: Collection[str]) -> str | None:
        """Returns the head, by the architecture and the parts with weights."""
        head = _HEADS.get(self.architecture or "")
        if head is None:
            return head_of_parts(parts)
        lacking = {*HEADS[head].parts} - {*parts}
        # Encoders without a pooler are common.
        if head == "encoder":
            lacking.discard("pooler")
        if lacking:
            raise in_file(
                self.path,
                f"the weights have no {min(lacking)}, which is part of a "
                f"{self.architecture}. Correct 'architectures'; BertModel is "
                "the encoder.",
            )
        # Google's checkpoints were published as BertForMaskedLM, with pooler
        # and next sentence head.
        whole = {*HEADS["pretraining"].parts}
        is_part = {*HEADS[head].parts} < whole
        return "pretraining" if is_part and whole <= {*parts} else head


def read_config(path: str) -> ConfigFile:
    """Reads a `config.json` of a BERT that this project can compute."""
    values = settings_files.read_json(path)
    settings_files.check(values, _CHECKS, path)
    architecture, *_ = values.get("architectures") or [None]
    field_names = [field.name for field in dataclasses.fields(BertConfig)]
    # The defaults of transformers; Google's is 16 types.
    ours = {"type_vocab_size": 2} | {
        name: values[name] for name in field_names if name in values
    }
    ours["hidden_act"] = _ACTIVATIONS[values.get("hidden_act") or "gelu"]
    try:
        config = BertConfig.from_dict(ours)
    except InputError as error:
        raise in_file(path, str(error)) from None
    if architecture not in (None, *_HEADS):
        logging.warning(
            "%s: the class %r is not one of %s. Reading a BERT, whose head "
            "depends on the weights",
            path,
            architecture,
            ", ".join(_HEADS),
        )
    id2label = values.get("id2label") or {}
    labels = tuple(str(id2label[str(n)]) for n in range(len(id2label)))
    dropout = values.get("classifier_dropout")
    return ConfigFile(
        path,
        config,
        architecture,
        # Default names in another order are real labels.
        None if labels == numbered_labels(len(labels)) else labels,
        values.get("problem_type"),
        None if dropout is None else float(dropout),
        _activation_fn(values),
        # Absent and null mean true, as in transformers.
        is_tied=values.get("tie_word_embeddings") is not False,
    )


def _activation_fn(values: Mapping[str, Any]) -> str | None:
    """Returns the activation of a cross-encoder, if it is recorded.

    The key differs between versions of sentence-transformers.
    """
    newest = values.get("sentence_transformers")
    newest = newest.get("activation_fn") if isinstance(newest, dict) else None
    oldest = values.get("sbert_ce_default_activation_function")
    name = newest or values.get("activation_fn") or oldest
    return str(name) if name else None


def to_json(
    config: BertConfig,
    head: str,
    labels: Sequence[str] | None = None,
    pad_token_id: int | None = 0,
    problem_type: str | None = None,
    classifier_dropout: float | None = None,
    activation_fn: str | None = None,
) -> str:
    """Returns the text of a `config.json`.

    The arguments are fields of `Pretrained`, and the id of [PAD]. If two labels
    have the same name, `label2id` contains only the first, and a warning is
    logged.

    Raises:
      InputError: If the model is left-to-right. transformers has a decoder, but
        pools [CLS], which attends to itself only.
    """
    if config.is_left_to_right:
        raise wrong_value(
            "attention_direction of a Hugging Face model",
            "'bidirectional'",
            config.attention_direction,
        )
    theirs = {ours: name for name, ours in reversed(_ACTIVATIONS.items())}
    values = {
        **config.to_dict(),
        "add_cross_attention": False,
        "architectures": [HEADS[head].architecture],
        "classifier_dropout": classifier_dropout,
        "dtype": "float32",
        "hidden_act": theirs[config.hidden_act],
        "is_decoder": False,
        "layer_norm_eps": 1e-12,
        "model_type": "bert",
        "pad_token_id": pad_token_id,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
    }
    if problem_type is not None:
        values["problem_type"] = problem_type
    if activation_fn is not None:
        values["sentence_transformers"] = {"activation_fn": activation_fn}
    if labels is not None:
        values["id2label"] = dict(enumerate(labels))
        values["label2id"] = {label: labels.index(label) for label in labels}
        shared = [x for x in values["label2id"] if labels.count(x) > 1]
        if shared:
            logging.warning(
                "Several classes are named %s: label2id contains the number of "
                "the first, id2label contains all",
                ", ".join(map(repr, shared)),
            )
    text = json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False)
    return text + "\n"


def numbered_labels(count: int) -> tuple[str, ...]:
    """Returns Hugging Face's default names of classes."""
    return tuple(f"LABEL_{n}" for n in range(count))
