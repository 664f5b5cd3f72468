"""The vocabulary and the casing in a Hugging Face folder.

`vocab.txt` holds the tokens; where it is missing, `tokenizer.json` does. The
casing is in `tokenizer_config.json`, or in `tokenizer.json`.

The two kinds of tokenizer are not quite the same. Hugging Face's gives up on
words of more than 100 characters, Google's and this project's of more than
200; and it looks for special and added tokens in the text, which are words
like others here. Folders that differ more are read with a warning.
"""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from bert_tf import files
from bert_tf.errors import InputError
from bert_tf.text.wordpiece import CONTINUATION, load_vocab

VOCABULARY = "vocab.txt"
TOKENIZER = "tokenizer.json"
SETTINGS = "tokenizer_config.json"

_CLASSES = (
    "BertTokenizer",
    "BertTokenizerFast",
    "PreTrainedTokenizerFast",
    "TokenizersBackend",
)
# The settings of Google's tokenizer, which cannot be told to do otherwise.
_GOOGLES = {
    "do_basic_tokenize": True,
    "tokenize_chinese_chars": True,
    "handle_chinese_chars": True,
    "clean_text": True,
}


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """What a folder says of its tokenizer; None where it says nothing.

    Attributes:
      vocab: The tokens in the order of their ids.
      do_lower_case: Whether the vocabulary is an uncased one.
      strip_accents: Whether accents are dropped; None does as
        `do_lower_case`.
    """

    vocab: tuple[str, ...] | None = None
    do_lower_case: bool | None = None
    strip_accents: bool | None = None


def read(folder: str) -> Tokenizer:
    """Reads a folder's tokenizer.

    Raises:
      InputError: A file is at fault, or the tokenizer is none of BERT's.
    """
    whole = _read_json(folder, TOKENIZER)
    settings = _normalizer(whole) | _read_json(folder, SETTINGS)
    vocab_file = os.path.join(folder, VOCABULARY)
    vocab = None
    if files.exists(vocab_file):
        vocab = tuple(load_vocab(vocab_file))
    elif whole:
        vocab = _vocabulary(whole, os.path.join(folder, TOKENIZER))
    _warn_of_differences(settings, folder)
    return Tokenizer(
        vocab,
        _switch(settings, "do_lower_case", folder),
        _switch(settings, "strip_accents", folder),
    )


def write(folder: str, tokenizer: Tokenizer, model_max_length: int) -> None:
    """Writes `vocab.txt` and `tokenizer_config.json`.

    transformers makes its tokenizer of the two. There is no `tokenizer.json`:
    transformers 5 would take nothing but the vocabulary from it.

    Args:
      folder: An existing directory.
      tokenizer: What to write.
      model_max_length: The longest input of the model, in pieces.
    """
    if tokenizer.vocab is not None:
        files.write_text(
            os.path.join(folder, VOCABULARY),
            "".join(f"{token}\n" for token in tokenizer.vocab),
        )
    settings = {
        "model_max_length": model_max_length,
        "strip_accents": tokenizer.strip_accents,
        "tokenize_chinese_chars": True,
        "tokenizer_class": "BertTokenizer",
    }
    if tokenizer.do_lower_case is None:
        logging.warning(
            "It is not known whether the vocabulary is an uncased one; "
            "transformers will lower-case texts unless %s says otherwise",
            os.path.join(folder, SETTINGS),
        )
    else:
        settings["do_lower_case"] = tokenizer.do_lower_case
    files.write_text(
        os.path.join(folder, SETTINGS),
        json.dumps(settings, indent=2, sort_keys=True) + "\n",
    )


def _read_json(folder: str, name: str) -> dict[str, Any]:
    """The content of a file that may be missing."""
    path = os.path.join(folder, name)
    return files.read_json(path) if files.exists(path) else {}


def _normalizer(whole: Mapping[str, Any]) -> dict[str, Any]:
    """The casing in a `tokenizer.json`, in the words of the settings."""
    steps = normalizer = whole.get("normalizer")
    if isinstance(normalizer, dict):
        steps = normalizer.get("normalizers", [normalizer])
    for step in steps if isinstance(steps, list) else []:
        if isinstance(step, dict) and step.get("type") == "BertNormalizer":
            return {**step, "do_lower_case": step.get("lowercase")}
    return {}


def _vocabulary(whole: Mapping[str, Any], path: str) -> tuple[str, ...]:
    """The tokens of a `tokenizer.json`, by their ids."""
    model = whole.get("model")
    model = model if isinstance(model, dict) else {"type": None}
    # Older files do not name the type of their model.
    kind = model.get("type", "WordPiece")
    prefix = model.get("continuing_subword_prefix")
    if kind != "WordPiece" or prefix != CONTINUATION:
        raise InputError(
            f"expected a WordPiece vocabulary with {CONTINUATION!r} before "
            f"continuations in {path}. Received: {kind!r} with {prefix!r}"
        )
    return _in_order(model.get("vocab"), path)


def _in_order(ids: Any, path: str) -> tuple[str, ...]:
    """The keys of a dict from token to id, which must count from 0."""
    if not isinstance(ids, dict) or not ids:
        raise InputError(
            f"expected the id of every token in {path}. Received: "
            f"{str(ids)[:60]!r}"
        )
    by_id = {n: token for token, n in ids.items() if isinstance(n, int)}
    for number in range(len(ids)):
        if number not in by_id:
            raise InputError(
                f"expected the ids 0 to {len(ids) - 1}, each once, in {path}. "
                f"Received: no token with id {number}"
            )
    for token, number in ids.items():
        if token != token.strip() or "\n" in token:
            raise InputError(
                "expected tokens that can stand on a line of a vocab.txt. "
                f"Received: {token!r}, id {number}, in {path}"
            )
    return tuple(by_id[number] for number in range(len(ids)))


def _warn_of_differences(settings: Mapping[str, Any], folder: str) -> None:
    """Says in one line what makes this tokenizer another than ours."""
    differences = [
        f"{name}={settings[name]!r}"
        for name, value in _GOOGLES.items()
        if settings.get(name, value) not in (value, None)
    ]
    name = settings.get("tokenizer_class") or _CLASSES[0]
    if name not in _CLASSES:
        differences.append(f"tokenizer_class={name!r}")
    if differences:
        logging.warning(
            "%s splits texts in another way than this project's tokenizer "
            "(%s): its weights are read, but give other results on raw texts",
            folder,
            ", ".join(differences),
        )


def _switch(settings: Mapping[str, Any], name: str, folder: str) -> bool | None:
    value = settings.get(name)
    if value is not None and not isinstance(value, bool):
        raise InputError(
            f"expected {name} to be true, false or null in the tokenizer of "
            f"{folder}. Received: {value!r}"
        )
    return value


def pad_token_id(vocab: Sequence[str] | None) -> int | None:
    """The id of [PAD]: 0 where there is no vocabulary that says otherwise."""
    if vocab is None:
        return 0
    return vocab.index("[PAD]") if "[PAD]" in vocab else None
