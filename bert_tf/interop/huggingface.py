"""Hugging Face folders: read, and written as transformers itself does.

    config.json                         configuration, kind of head, labels
    model.safetensors                   the weights, or
    model.safetensors.index.json        ... the list of their shards
    vocab.txt, tokenizer_config.json    vocabulary and casing

Free of TensorFlow and PyTorch.
"""

import os

from bert_tf import files
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.interop import (
    huggingface_config,
    huggingface_names,
    huggingface_tokenizer,
    tensor_files,
    unopened,
)
from bert_tf.interop.huggingface_names import PARTS_OF_HEAD, head_of_parts
from bert_tf.interop.huggingface_tokenizer import Tokenizer
from bert_tf.interop.huggingface_weights import (
    HuggingFaceWeights,
    from_ours,
    parts_of,
    weights_of,
)
from bert_tf.interop.pretrained import Pretrained
from bert_tf.training.weights import Weights

# The heads whose classes have names.
_WITH_LABELS = ("classifier", "token")


def is_folder(path: str) -> bool:
    """True for a directory with Hugging Face's files, be they refused.

    A TF1 checkpoint goes before weights that are refused.
    """
    if not files.is_directory(path):
        return False
    names = files.listdir(path)
    if tensor_files.WHOLE in names or tensor_files.INDEX in names:
        return True
    is_theirs = huggingface_config.FILE in names or unopened.find(names)
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
    config_file = os.path.join(folder, huggingface_config.FILE)
    described = huggingface_config.read(config_file)
    weights = HuggingFaceWeights(
        tensor_files.open_tensors(file), described.config
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
            f"{huggingface_config.FILE}. Received: none"
        )
    head = _head_of(pretrained, config)
    tensors = from_ours(weights, config, head)
    labels = _labels(pretrained.labels, weights, head)
    if labels is None and head in _WITH_LABELS:
        labels = huggingface_config.numbered_labels(_num_classes(weights))
    # Refused is what it cannot describe, before anything is written.
    description = huggingface_config.to_json(
        config,
        head,
        labels,
        huggingface_tokenizer.pad_token_id(pretrained.vocab),
        pretrained.problem_type,
        pretrained.classifier_dropout,
    )
    tensor_files.write(
        os.path.join(folder, tensor_files.WHOLE),
        {row.their_name(head): value for row, value in tensors.items()},
    )
    files.write_text(os.path.join(folder, huggingface_config.FILE), description)
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
        if unopened.find([path]):
            raise unopened.refusal(path)
        if not files.exists(path):
            raise InputError(
                f"expected a Hugging Face folder at {path}. Received: nothing "
                "of that name"
            )
        return path
    names = files.listdir(path)
    for name in (tensor_files.WHOLE, tensor_files.INDEX):
        if name in names:
            return os.path.join(path, name)
    other = unopened.find(names)
    if other:
        raise unopened.refusal(os.path.join(path, other))
    raise InputError(
        f"expected {tensor_files.WHOLE} in {path}. Received: a folder "
        "without; give one that save_pretrained wrote"
    )


def _check_tied(
    described: huggingface_config.Described, weights: HuggingFaceWeights
) -> None:
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
