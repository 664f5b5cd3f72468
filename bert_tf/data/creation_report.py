"""What data creation says of its work: complaints, samples, the manifest."""

import collections
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from absl import logging

from bert_tf import files
from bert_tf.data import documents, stages
from bert_tf.data.creation_config import CreationConfig
from bert_tf.errors import InputError
from bert_tf.version import __version__

SUSPICIOUS_UNKNOWN_SHARE = 0.1
SUSPICIOUS_RANDOM_SHARE = 0.75
SUSPICIOUS_BEYOND_SHARE = 0.05


def vocabulary_entry(config: CreationConfig) -> dict[str, Any]:
    """What the manifest says of the vocabulary.

    Raises:
      InputError: It is unusable or lacks a special token.
    """
    size = len(stages.tools(config).tokenizer.vocab)
    with files.open_read(config.vocab_file) as file:
        checksum = hashlib.sha256(file.read()).hexdigest()
    return {"path": config.vocab_file, "size": size, "sha256": checksum}


def shard_entry(path: str, num_records: int, checksum: str) -> dict[str, Any]:
    """What the manifest says of an output file."""
    return {"path": path, "records": num_records, "sha256": checksum}


def manifest(
    config: CreationConfig,
    vocabulary: dict[str, Any],
    sizes: Mapping[str, int],
    shards: Sequence[dict[str, Any]],
    counts: Mapping[str, int],
) -> dict[str, Any]:
    """All that is to be known of the records.

    Args:
      config: The settings.
      vocabulary: A `vocabulary_entry`.
      sizes: The bytes of text of each input file.
      shards: A `shard_entry` for each output file.
      counts: What was counted, by name.
    """
    return {
        "version": __version__,
        "settings": config.settings(),
        "vocabulary": vocabulary,
        "inputs": [
            {"path": path, "bytes": size} for path, size in sizes.items()
        ],
        "outputs": list(shards),
        "counts": {name: counts[name] for name in sorted(counts)},
    }


def token_counts(
    config: CreationConfig, block: documents.EncodedBlock
) -> collections.Counter[str]:
    """What is in a block's tokens, by the manifest's names."""
    unk_id = stages.tools(config).unk_id
    beyond = block.lengths - config.instance_rule.room
    return collections.Counter(
        tokens=len(block.tokens),
        sentences=len(block.lengths),
        unknown_tokens=int((block.tokens == unk_id).sum()),
        sentences_longer_than_an_instance=int((beyond > 0).sum()),
        tokens_beyond_an_instance=int(beyond[beyond > 0].sum()),
    )


def check_text(config: CreationConfig, counts: Mapping[str, int]) -> None:
    """Looks at a text before anything is cut from it.

    Raises:
      InputError: Nothing can be made of it.
    """
    if not counts["sentences"]:
        raise InputError(
            "Expected lines of text. Received: nothing but blank lines in "
            f"--input_file={config.input_file}"
        )
    if not config.next_sentence:
        return
    is_text = config.input_format == "text"
    if counts["documents"] == 1:
        advice = "put blank lines between documents, or " if is_text else ""
        raise InputError(
            "Expected two documents or more: next-sentence prediction takes "
            "random sentences from another one. Received: 1 document; "
            f"{advice}pass --nonext_sentence"
        )
    if counts["sentences"] == counts["documents"]:
        advice = (
            "leave blank lines between documents only"
            if is_text
            else f"end each sentence in {config.jsonl_field!r} with \\n"
        )
        raise InputError(
            "Expected documents of several sentences, one a line: a lone "
            f"sentence has no next one. Received: {counts['documents']:,} "
            f"documents of 1 sentence; {advice}, or pass --nonext_sentence"
        )


def check_instances(config: CreationConfig, counts: Mapping[str, int]) -> None:
    """Warns of what is possible, but seldom meant."""
    unknown = counts["unknown_tokens"] / counts["tokens"]
    if unknown > SUSPICIOUS_UNKNOWN_SHARE:
        logging.warning(
            "%.0f %% of the tokens are [UNK]: do --vocab_file, "
            "--do_lower_case and --strip_accents suit the text?",
            100 * unknown,
        )
    beyond = counts["tokens_beyond_an_instance"] / counts["tokens"]
    # A single segment goes on in the next instance and loses nothing.
    if config.next_sentence and beyond > SUSPICIOUS_BEYOND_SHARE:
        logging.warning(
            "%d of %d lines are longer than an instance; what does not fit "
            "is dropped, %.0f %% of all tokens: is there one sentence a "
            "line?",
            counts["sentences_longer_than_an_instance"],
            counts["sentences"],
            100 * beyond,
        )
    random_next = counts["random_next"] / counts["instances"]
    if random_next > SUSPICIOUS_RANDOM_SHARE:
        logging.warning(
            "%.0f %% of the instances have a random next sentence: there "
            "are many documents of one sentence, or sentences longer than "
            "--max_seq_length",
            100 * random_next,
        )


def log_samples(
    config: CreationConfig, samples: Mapping[str, npt.ArrayLike]
) -> None:
    """Shows instances in words.

    Args:
      config: The settings.
      samples: The features of some instances, each [n, ...].
    """
    to_words = stages.tools(config).tokenizer.convert_ids_to_tokens
    arrays = {name: np.asarray(values) for name, values in samples.items()}
    for row in range(len(arrays["input_ids"])):
        sample = {name: values[row] for name, values in arrays.items()}
        is_token = sample["input_mask"].astype(bool)
        is_masked = sample["masked_lm_weights"] > 0
        logging.info("*** Example ***")
        logging.info(
            "tokens: %s", " ".join(to_words(sample["input_ids"][is_token]))
        )
        logging.info(
            "masked_lm_labels: %s",
            " ".join(to_words(sample["masked_lm_ids"][is_masked])),
        )
        logging.info(
            "is_random_next: %s", bool(sample["next_sentence_labels"][0])
        )
