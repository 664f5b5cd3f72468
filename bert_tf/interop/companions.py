"""What lies beside a checkpoint: its configuration, vocabulary and facts.

    bert_config.json    the shape of the model, as Google writes it
    vocab.txt           the vocabulary, one token a line
    bert_tf.json        casing, labels and their kind, the kind of head, the
                        objective and the lengths of training

The last is ours, for what Google's files cannot say. Google's code does not
look at it, and what it did not write is read without.
"""

import dataclasses
import difflib
import json
import os
from typing import Any

from absl import logging

from bert_tf import files
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.interop.pretrained import Pretrained
from bert_tf.text.wordpiece import read_tokens

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
