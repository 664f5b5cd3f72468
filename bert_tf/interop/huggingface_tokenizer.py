"""The vocabulary and the casing in a Hugging Face folder.

`vocab.txt` holds the tokens; where it is missing, `tokenizer.json` does. The
casing is in `tokenizer_config.json`, or in `tokenizer.json`. Tokens that were
added later are in `added_tokens.json` (transformers 4), `tokenizer.json` or
`tokenizer_config.json`; their ids go on behind the vocabulary's.

The two kinds of tokenizer are not quite the same. Hugging Face's gives up on
words of more than 100 characters, Google's and this project's of more than
200; and it looks for special and added tokens in the text, which are words
like others here. Folders that differ more are read with a warning.
"""

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from bert_tf import files
from bert_tf.errors import InputError
from bert_tf.tokenization.wordpiece import CONTINUATION, read_tokens

VOCABULARY = "vocab.txt"
TOKENIZER = "tokenizer.json"
SETTINGS = "tokenizer_config.json"
ADDED = "added_tokens.json"

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


def read(folder: str, vocab_size: int) -> Tokenizer:
    """Reads a folder's tokenizer.

    What is wrong with lines of a `vocab.txt` matters where they are used to
    tokenize, not here.

    Args:
      folder: The folder.
      vocab_size: How many words the model knows.

    Raises:
      InputError: A file is at fault, or the tokenizer is none of BERT's.
    """
    whole = _read_json(folder, TOKENIZER)
    own_settings = _read_json(folder, SETTINGS)
    settings = _normalizer(whole) | own_settings
    vocab_file = os.path.join(folder, VOCABULARY)
    vocab = None
    if files.exists(vocab_file):
        vocab = tuple(read_tokens(vocab_file))
    elif whole:
        vocab = _vocabulary(whole, os.path.join(folder, TOKENIZER))
    if vocab is not None:
        added = _added_tokens(folder, whole, own_settings)
        _check_added(added, vocab, folder)
        vocab += _continuation(added, len(vocab), vocab_size, folder)
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
        if token and not _is_line(token):
            raise InputError(
                "expected tokens that can stand on a line of a vocab.txt. "
                f"Received: {token!r}, id {number}, in {path}"
            )
    return tuple(by_id[number] for number in range(len(ids)))


def _added_tokens(
    folder: str, whole: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[int, str]:
    """The tokens that three files may list beside the vocabulary, by id.

    Raises:
      InputError: They are malformed, or do not agree.
    """
    listed = [
        *_listed(whole, settings),
        *((n, token) for token, n in _read_json(folder, ADDED).items()),
    ]
    added: dict[int, str] = {}
    for number, token in listed:
        if type(number) is not int or not isinstance(token, str):
            raise InputError(
                f"expected added tokens in {folder} to be words with ids. "
                f"Received: {token!r} with id {number!r}"
            )
        if added.setdefault(number, token) != token:
            raise _contradiction(number, added[number], token, folder)
    return added


def _listed(
    whole: Mapping[str, Any], settings: Mapping[str, Any]
) -> Iterator[tuple[Any, Any]]:
    """(id, token) of what `tokenizer.json` and the settings add, unchecked."""
    in_whole = whole.get("added_tokens")
    for entry in in_whole if isinstance(in_whole, list) else []:
        if isinstance(entry, dict):
            yield entry.get("id"), entry.get("content")
    in_settings = settings.get("added_tokens_decoder")
    in_settings = in_settings if isinstance(in_settings, dict) else {}
    for number, entry in in_settings.items():
        if isinstance(entry, dict):
            is_number = number.isascii() and number.isdigit()
            yield int(number) if is_number else number, entry.get("content")


def _check_added(
    added: Mapping[int, str], vocab: Sequence[str], folder: str
) -> None:
    """Raises InputError if added tokens and the vocabulary do not agree."""
    ids = {token: number for number, token in enumerate(vocab)}
    for number, token in added.items():
        if 0 <= number < len(vocab):
            if vocab[number] != token.strip():
                raise _contradiction(number, vocab[number], token, folder)
        elif number < 0 or token in ids:
            raise InputError(
                f"expected added tokens behind the {len(vocab)} of the "
                f"vocabulary of {folder}. Received: {token!r} with id {number}"
                + (f", which has id {ids[token]}" if token in ids else "")
            )


def _contradiction(
    number: int, one: str, other: str, folder: str
) -> InputError:
    return InputError(
        f"expected one token with id {number} in {folder}. Received: {one!r} "
        f"and {other!r}; correct one of {VOCABULARY}, {TOKENIZER}, {SETTINGS} "
        f"and {ADDED}"
    )


def _continuation(
    added: Mapping[int, str], start: int, vocab_size: int, folder: str
) -> tuple[str, ...]:
    """The added tokens behind a vocabulary of `start` tokens.

    Those that the model has no embedding of are left out. Those that cannot
    stand on a line of a `vocab.txt` leave their id to a word that never
    occurs.

    Raises:
      InputError: An id is missing among theirs.
    """
    more = sorted(number for number in added if start <= number < vocab_size)
    if more and more[-1] != start + len(more) - 1:
        free = next(n for n in range(start, more[-1]) if n not in added)
        raise InputError(
            f"expected the ids of added tokens in {folder} to go on from "
            f"{start}. Received: {more[-1]} for {added[more[-1]]!r}, and no "
            f"token with id {free}"
        )
    odd = [n for n in more if not _is_line(added[n])]
    beyond = [number for number in added if number >= vocab_size]
    tokens = [added[n] for n in (*more, *beyond)]
    _warn_of_added(tokens, len(odd), len(beyond), folder)
    return tuple(f"[unused{n}]" if n in odd else added[n] for n in more)


def _is_line(token: str) -> bool:
    """Whether a token can stand on a line of a `vocab.txt`."""
    return token != "" and token == token.strip() and "\n" not in token


def _warn_of_added(
    tokens: Sequence[str], odd: int, beyond: int, folder: str
) -> None:
    """Says in one line what becomes of added tokens, if there are any."""
    faults = [
        f"{count} of them left out, {reason}"
        for count, reason in (
            (odd, "with white space at an end or more than a line"),
            (beyond, "with ids that the model has no embedding of"),
        )
        if count
    ]
    if tokens:
        shown = ", ".join(repr(token[:80]) for token in tokens[:4])
        logging.warning(
            "%s adds %d to its vocabulary (%s): transformers looks for such "
            "tokens in texts before all else, here they are words like others"
            "%s",
            folder,
            len(tokens),
            shown + (", ..." if tokens[4:] else ""),
            "".join(f"; {fault}" for fault in faults),
        )


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
