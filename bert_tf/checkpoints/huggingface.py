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
import os
from collections.abc import Collection, Mapping
from typing import Any

from bert_tf.base import files
from bert_tf.checkpoints import (
    huggingface_tokenizer,
    huggingface_weights,
    sentence_transformers,
)
from bert_tf.checkpoints.checkpoint import (
    ADAPTERS,
    BOOLEAN,
    PROBLEM_TYPES,
    RATE,
    Check,
    Pretrained,
    are_texts,
    find_unsupported,
    one_of,
    read_json,
    read_trained_with,
    unsupported_format,
    write_json,
    write_recorded,
)
from bert_tf.checkpoints.huggingface_names import DECODER, HEADS, head_of_parts
from bert_tf.checkpoints.huggingface_weights import (
    INDEX,
    WHOLE,
    HuggingFaceWeights,
    huggingface_tensors,
)
from bert_tf.checkpoints.weights import Weights
from bert_tf.config import BertConfig, is_number
from bert_tf.errors import InputError, in_file, wrong_value


def find_weights(path: str) -> str | None:
    """Returns the weight file of a Hugging Face model; None for another path.

    In a folder without a TF1 checkpoint, the file may be missing, or in a
    format that is refused.
    """
    if not files.is_directory(path):
        is_theirs = path.endswith((".safetensors", ".safetensors.index.json"))
        # Both a TF1 prefix and a pickle may end in .ckpt.
        is_refused = find_unsupported([path]) and files.exists(path)
        return path if is_theirs or is_refused else None
    names = files.listdir(path)
    found = [name for name in (WHOLE, INDEX, ADAPTERS) if name in names]
    if not found and not any(name.endswith(".index") for name in names):
        found = [find_unsupported(names) or WHOLE]
        if found == [WHOLE] and CONFIG not in names:
            return None
    return os.path.join(path, found[0]) if found else None


def read(path: str) -> Pretrained:
    """Reads a folder. Its weights are read on access.

    The path is the folder, its safetensors file or the index of its shards.
    Raises InputError if a file is missing or damaged, or is not for a BERT that
    this project can compute.
    """
    file = find_weights(path) or os.path.join(path, WHOLE)
    folder, name = os.path.split(file)
    if name == ADAPTERS:
        raise in_file(
            path,
            "this folder has PEFT adapters, not a model. Load the model that "
            "they belong to, then call load_lora_weights with this folder.",
        )
    if find_unsupported([file]):
        raise unsupported_format(file)
    where = os.path.join(folder, CONFIG)
    values = read_json(where, _CHECKS)
    config = _config(values, where)
    weights = HuggingFaceWeights(huggingface_weights.open_tensors(file), config)
    if (
        # Absent and null mean true, as in transformers.
        values.get("tie_word_embeddings") is False
        and "masked_lm" in weights.parts
        # A decoder in the file was compared with the embeddings.
        and DECODER not in weights.explained
    ):
        raise in_file(
            where,
            f"tie_word_embeddings is false, but {weights.path} has no "
            f"{DECODER}. bert_tf's masked LM always uses the embedding matrix.",
        )
    head = _head(values, weights.parts, where)
    tokenizer = huggingface_tokenizer.read(folder, config.vocab_size)
    embedding = sentence_transformers.read(
        folder, config.max_position_embeddings
    )
    is_lowered = embedding.pop("do_lower_case", False)
    if is_lowered and tokenizer["do_lower_case"] is False:
        # A cased tokenizer keeps accents, in lower-cased texts too.
        tokenizer["do_lower_case"] = True
        tokenizer["strip_accents"] = bool(tokenizer["strip_accents"])
    return Pretrained(
        path=path,
        weights=weights,
        config=config,
        # A config.json may name two classes for a model without classes.
        labels=_labels_of_head(_labels(values), weights, head),
        head=head,
        problem_type=values.get("problem_type"),
        classifier_dropout=values.get("classifier_dropout"),
        activation_fn=_activation_fn(values) if head == "classifier" else None,
        **{**tokenizer, **read_trained_with(folder), **embedding},
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
    assert config is not None
    assert head is not None
    # These two can fail, so they come before anything is written.
    values = config_values(pretrained)
    tensors = huggingface_tensors(pretrained.weights, config, head)
    huggingface_weights.write(os.path.join(folder, WHOLE), tensors)
    write_json(os.path.join(folder, CONFIG), values)
    huggingface_tokenizer.write(
        folder, pretrained, config.max_position_embeddings
    )
    write_recorded(folder, pretrained.trained_with)
    if head == "encoder" and pretrained.pooling is not None:
        sentence_transformers.write(folder, pretrained)


def _labels_of_head(
    labels: tuple[str, ...] | None, weights: Weights, head: str | None
) -> tuple[str, ...] | None:
    """Returns the labels if the head has named classes, else None."""
    if "output_bias" not in weights:
        return None
    if head is not None and not HEADS[head].has_labels:
        labels = None
    count = weights.shapes["output_bias"][0]
    expected = len(labels) if labels is not None else count
    if head == "choice":
        expected = 1
    if count != expected:
        raise in_file(
            weights.path,
            f"output_bias has {count} elements, but a {head} with the labels "
            f"{labels} needs {expected}. Correct the head or the labels.",
        )
    return labels


# config.json: the configuration, the head and the labels.

CONFIG = "config.json"

_HEADS = {x.architecture: head for head, x in HEADS.items()}
# The names of activations in transformers 2 to 5. Of several names for one
# activation, the first is written.
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


# What the values must be, unless they are absent or null.
_CHECKS = {
    "model_type": one_of(["bert"]),
    "layer_norm_eps": one_of([1e-12]),
    "position_embedding_type": one_of(["absolute"]),
    "is_decoder": one_of([False]),
    "add_cross_attention": one_of([False]),
    "architectures": Check(
        lambda value: are_texts(value) and "BertLMHeadModel" not in value,
        "a list of strings without BertLMHeadModel, which is a decoder",
    ),
    "hidden_act": one_of(_ACTIVATIONS),
    "problem_type": one_of(PROBLEM_TYPES),
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


def read_config(path: str) -> BertConfig:
    """Reads the `config.json` of a BERT that this project can compute."""
    return _config(read_json(path, _CHECKS), path)


def _config(values: Mapping[str, Any], path: str) -> BertConfig:
    field_names = [field.name for field in dataclasses.fields(BertConfig)]
    # The defaults of transformers. Google's default is 16 types.
    ours = {"type_vocab_size": 2} | {
        name: values[name] for name in field_names if name in values
    }
    ours["hidden_act"] = _ACTIVATIONS[values.get("hidden_act") or "gelu"]
    try:
        return BertConfig.from_dict(ours)
    except InputError as error:
        raise in_file(path, str(error)) from None


def _head(
    values: Mapping[str, Any], parts: Collection[str], path: str
) -> str | None:
    """Returns the head, by the architecture and the parts with weights."""
    architecture, *_ = values.get("architectures") or [None]
    head = _HEADS.get(architecture)
    if head is None:
        return head_of_parts(parts)
    lacking = {*HEADS[head].parts} - {*parts}
    # Encoders without a pooler are common.
    if head == "encoder":
        lacking.discard("pooler")
    if lacking:
        raise in_file(
            path,
            f"the weights have no {min(lacking)}, which is part of a "
            f"{architecture}. Correct 'architectures'; BertModel is the "
            "encoder.",
        )
    # Google's checkpoints were published as BertForMaskedLM, with pooler and
    # next sentence head.
    whole = {*HEADS["pretraining"].parts}
    is_part = {*HEADS[head].parts} < whole
    return "pretraining" if is_part and whole <= {*parts} else head


def _labels(values: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Returns the names of the classes, if they are not the default names."""
    id2label = values.get("id2label") or {}
    labels = tuple(str(id2label[str(n)]) for n in range(len(id2label)))
    # Default names in another order are real labels.
    return None if labels == numbered_labels(len(labels)) else labels


def _activation_fn(values: Mapping[str, Any]) -> str | None:
    """Returns the activation of a cross-encoder, if it is recorded.

    The key differs between versions of sentence-transformers.
    """
    newest = values.get("sentence_transformers")
    newest = newest.get("activation_fn") if isinstance(newest, dict) else None
    oldest = values.get("sbert_ce_default_activation_function")
    name = newest or values.get("activation_fn") or oldest
    return str(name) if name else None


def config_values(pretrained: Pretrained) -> dict[str, Any]:
    """Returns the contents of a `config.json`.

    If two labels have the same name, `label2id` contains only the first.

    Raises:
      InputError: If the number of labels or of choices is wrong, or the model
        is left-to-right: transformers would pool [CLS], which then attends only
        to itself.
    """
    config, head = pretrained.config, pretrained.head
    weights, vocab = pretrained.weights, pretrained.vocab
    assert config is not None
    assert head is not None
    if config.is_left_to_right:
        raise wrong_value(
            "attention_direction of a Hugging Face model",
            "'bidirectional'",
            config.attention_direction,
        )
    theirs = {ours: name for name, ours in reversed(_ACTIVATIONS.items())}
    pad_token_id: int | None = 0
    if vocab is not None:
        pad_token_id = vocab.index("[PAD]") if "[PAD]" in vocab else None
    values = {
        **config.to_dict(),
        "add_cross_attention": False,
        "architectures": [HEADS[head].architecture],
        "classifier_dropout": pretrained.classifier_dropout,
        "dtype": "float32",
        "hidden_act": theirs[config.hidden_act],
        "is_decoder": False,
        "layer_norm_eps": 1e-12,
        "model_type": "bert",
        "pad_token_id": pad_token_id,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
    }
    if pretrained.problem_type is not None:
        values["problem_type"] = pretrained.problem_type
    if pretrained.activation_fn is not None:
        values["sentence_transformers"] = {
            "activation_fn": pretrained.activation_fn
        }
    labels = _labels_of_head(pretrained.labels, weights, head)
    if labels is None and HEADS[head].has_labels:
        labels = numbered_labels(weights.shapes["output_bias"][0])
    if labels is not None:
        values["id2label"] = dict(enumerate(labels))
        values["label2id"] = {label: labels.index(label) for label in labels}
    return values


def numbered_labels(count: int) -> tuple[str, ...]:
    """Returns Hugging Face's default names of classes."""
    return tuple(f"LABEL_{n}" for n in range(count))
