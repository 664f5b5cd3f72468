"""The tokenizer of a Hugging Face folder: vocabulary and casing.

`vocab.txt` contains the tokens; if it is missing, `tokenizer.json` does. The
casing is in `tokenizer_config.json` or `tokenizer.json`. Tokens added later are
in `added_tokens.json` (transformers 4), `tokenizer.json` or
`tokenizer_config.json`; their ids follow the vocabulary's.

Hugging Face's tokenizer differs from Google's in two ways: it maps words of
more than 100 characters to [UNK] (Google's: 200), and it finds special and
added tokens in the text. Reading a tokenizer with other differences logs a
warning.
"""

import dataclasses
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from bert_tf.base import files
from bert_tf.checkpoints import settings_files
from bert_tf.checkpoints.checkpoint import VOCABULARY, write_vocabulary
from bert_tf.checkpoints.settings_files import (
    BOOLEAN,
    OBJECT,
    OBJECTS,
    TEXT,
    Check,
)
from bert_tf.errors import in_file, listed, shortened
from bert_tf.tokenization.normalization import Normalizer
from bert_tf.tokenization.vocabulary_file import (
    CONTINUATION,
    SPECIAL_TOKENS,
    read_tokens,
)

TOKENIZER = "tokenizer.json"
SETTINGS = "tokenizer_config.json"
ADDED = "added_tokens.json"

_CLASSES = (
    "BertTokenizer",
    "BertTokenizerFast",
    "PreTrainedTokenizerFast",
    "TokenizersBackend",
)
# The settings of Google's tokenizer, which are fixed.
_GOOGLES = {
    "do_basic_tokenize": True,
    "tokenize_chinese_chars": True,
    "handle_chinese_chars": True,
    "clean_text": True,
}
_CASING = {"do_lower_case": BOOLEAN, "strip_accents": BOOLEAN}
_IN_SETTINGS = {
    **_CASING,
    **dict.fromkeys(_GOOGLES, BOOLEAN),
    "tokenizer_class": TEXT,
    "added_tokens_decoder": Check(
        lambda value: (
            isinstance(value, dict) and OBJECTS.is_valid([*value.values()])
        ),
        "an object whose values are objects",
    ),
}
_IN_TOKENIZER = {"added_tokens": OBJECTS, "model": OBJECT}


@dataclasses.dataclass(frozen=True)
class TokenizerSettings:
    """A folder's vocabulary and casing; see `Pretrained`."""

    vocab: tuple[str, ...] | None = None
    do_lower_case: bool | None = None
    strip_accents: bool | None = None


def read(folder: str, vocab_size: int) -> TokenizerSettings:
    """Reads a folder's tokenizer; does not validate the lines of `vocab.txt`.

    Added tokens whose id is not below `vocab_size` have no embedding and are
    left out. Raises InputError if a file is invalid, or the tokenizer is not
    BERT's.
    """
    whole = settings_files.read(folder, TOKENIZER, _IN_TOKENIZER)
    own = settings_files.read(folder, SETTINGS, _IN_SETTINGS)
    added_tokens = settings_files.read(folder, ADDED, {})
    settings = _normalizer(whole) | own
    where = os.path.join(folder, TOKENIZER)
    settings_files.check(settings, _CASING, where)
    tokenizer = TokenizerSettings(
        _vocabulary_of(folder, whole),
        settings.get("do_lower_case"),
        settings.get("strip_accents"),
    )
    if tokenizer.vocab is not None:
        pairs = ((n, token) for token, n in added_tokens.items())
        entries = [*_added_entries(whole, own), *pairs]
        added = _check_added(entries, tokenizer.vocab, folder)
        more = _extra_tokens(added, tokenizer, vocab_size, folder)
        tokenizer = dataclasses.replace(tokenizer, vocab=tokenizer.vocab + more)
    _warn_of_differences(settings, folder)
    return tokenizer


def _vocabulary_of(
    folder: str, whole: Mapping[str, Any]
) -> tuple[str, ...] | None:
    """Returns the tokens of `vocab.txt` or of a `tokenizer.json`, if any."""
    if path := files.find_in(folder, VOCABULARY):
        return tuple(read_tokens(path))
    return (
        _vocabulary(whole, os.path.join(folder, TOKENIZER)) if whole else None
    )


def write(
    folder: str, tokenizer: TokenizerSettings, model_max_length: int
) -> None:
    """Writes `vocab.txt` and `tokenizer_config.json`.

    transformers builds its tokenizer from these two. There is no
    `tokenizer.json`, from which transformers 5 would take the vocabulary only.
    """
    if tokenizer.vocab is not None:
        write_vocabulary(folder, tokenizer.vocab)
    settings = {
        "model_max_length": model_max_length,
        "strip_accents": tokenizer.strip_accents,
        "tokenize_chinese_chars": True,
        "tokenizer_class": "BertTokenizer",
    }
    if tokenizer.do_lower_case is None:
        logging.warning(
            "The casing of the vocabulary is unknown; transformers will "
            "lower-case texts unless %s sets do_lower_case",
            os.path.join(folder, SETTINGS),
        )
    else:
        settings["do_lower_case"] = tokenizer.do_lower_case
    files.write_text(
        os.path.join(folder, SETTINGS),
        json.dumps(settings, indent=2, sort_keys=True) + "\n",
    )


def _normalizer(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the casing of a `tokenizer.json` as settings."""
    steps = normalizer = whole.get("normalizer")
    if isinstance(normalizer, dict):
        steps = normalizer.get("normalizers", [normalizer])
    for step in steps if isinstance(steps, list) else []:
        if isinstance(step, dict) and step.get("type") == "BertNormalizer":
            return {**step, "do_lower_case": step.get("lowercase")}
    return {}


def _vocabulary(whole: Mapping[str, Any], path: str) -> tuple[str, ...]:
    """Returns the tokens of a `tokenizer.json` in the order of their ids."""
    model = whole.get("model") or {"type": None}
    # Older files do not record the type of their model.
    kind = model.get("type", "WordPiece")
    prefix = model.get("continuing_subword_prefix")
    if kind != "WordPiece" or prefix != CONTINUATION:
        raise in_file(
            path,
            f"the tokenizer must be WordPiece with the prefix {CONTINUATION!r};"
            f" got {shortened(kind)} with {shortened(prefix)}.",
        )
    ids = model.get("vocab")
    if not isinstance(ids, dict) or not ids:
        raise in_file(
            path, f"'vocab' must map tokens to ids; got {shortened(ids, 60)}."
        )
    # Not isinstance, which accepts true for 1.
    by_id = {n: token for token, n in ids.items() if type(n) is int}
    missing = [n for n in range(len(ids)) if n not in by_id]
    if missing:
        raise in_file(
            path,
            f"the ids of the tokens must be 0 to {len(ids) - 1}; {missing[0]} "
            "is missing.",
        )
    for token, number in ids.items():
        if token and not _is_line(token):
            raise in_file(
                path,
                f"token {number}, {shortened(token)}, cannot be a line of "
                "vocab.txt.",
            )
    return tuple(by_id[number] for number in range(len(ids)))


def _added_entries(
    whole: Mapping[str, Any], settings: Mapping[str, Any]
) -> Iterator[tuple[Any, Any]]:
    """Yields the (id, token) pairs of `tokenizer.json` and of the settings."""
    for entry in whole.get("added_tokens") or []:
        yield entry.get("id"), entry.get("content")
    for number, entry in (settings.get("added_tokens_decoder") or {}).items():
        is_number = re.fullmatch(r"\d{1,9}", number, re.ASCII)
        yield int(number) if is_number else number, entry.get("content")


def _check_added(
    entries: Sequence[tuple[Any, Any]], vocab: Sequence[str], folder: str
) -> dict[int, str]:
    """Returns the added tokens by id; they must not contradict `vocab`."""
    ids = {token: number for number, token in enumerate(vocab)}
    added: dict[int, str] = {}
    for number, token in entries:
        if type(number) is not int or not isinstance(token, str):
            raise in_file(
                folder,
                "added tokens must be strings with integer ids; got "
                f"{shortened(token)} with id {shortened(number)}.",
            )
        other = added.setdefault(number, token)
        if 0 <= number < len(vocab):
            if vocab[number] != token.strip():
                other = vocab[number]
        elif number < 0 or token in ids:
            present = f", but it has id {ids[token]}" if token in ids else ""
            raise in_file(
                folder,
                "added tokens must not be in the vocabulary and need "
                f"ids from {len(vocab)} on; got {shortened(token)} with id "
                f"{number}{present}.",
            )
        if other != token:
            raise in_file(
                folder,
                f"both {shortened(other)} and {shortened(token)} have id "
                f"{number}. Correct {VOCABULARY}, {TOKENIZER}, {SETTINGS} or "
                f"{ADDED}.",
            )
    return added


def _extra_tokens(
    added: Mapping[int, str],
    tokenizer: TokenizerSettings,
    vocab_size: int,
    folder: str,
) -> tuple[str, ...]:
    """Returns the added tokens that follow the vocabulary of a tokenizer.

    Tokens that cannot be a line of `vocab.txt` are replaced by a word that
    never occurs, [unused<id>].
    """
    start = len(tokenizer.vocab or ())
    more = sorted(number for number in added if start <= number < vocab_size)
    if more and more[-1] != start + len(more) - 1:
        gap = next(n for n in range(start, more[-1]) if n not in added)
        raise in_file(
            folder,
            f"no token has id {gap}, but {shortened(added[more[-1]])} has "
            f"{more[-1]}. "
            f"Ids of added tokens must be consecutive from {start}.",
        )
    odd = [n for n in more if not _is_line(added[n])]
    beyond = [number for number in added if number >= vocab_size]
    if more or beyond:
        tokens = [added[n] for n in (*more, *beyond)]
        faults = "".join(
            f"; {count} ignored, {reason}"
            for count, reason in (
                (len(odd), "with leading or trailing spaces, or line breaks"),
                (len(beyond), "without an embedding"),
            )
            if count
        )
        logging.warning(
            "%s adds %d tokens to its vocabulary (%s): transformers finds them "
            "anywhere in a text, bert_tf treats them as words%s",
            folder,
            len(tokens),
            _quoted(tokens),
            faults,
        )
    extra = [added[n] for n in sorted(added) if n < vocab_size]
    _warn_of_lost([*filter(_is_line, extra)], tokenizer, folder)
    return tuple(f"[unused{n}]" if n in odd else added[n] for n in more)


def _warn_of_lost(
    added: Sequence[str], tokenizer: TokenizerSettings, folder: str
) -> None:
    """Warns of added tokens that the tokenizer never finds in a text."""
    normalize = Normalizer(
        # An unknown casing counts as cased, which changes fewer tokens.
        bool(tokenizer.do_lower_case),
        tokenizer.strip_accents,
    )
    lost = [
        token
        for token in added
        if token not in SPECIAL_TOKENS and normalize(token).split() != [token]
    ]
    if lost:
        logging.warning(
            "%s has added tokens that bert_tf never finds (%s): the tokenizer "
            "splits or changes them before it looks for tokens, so texts with "
            "them give different results than in transformers. Remove them "
            "from the texts, or replace them by words and train the model "
            "again",
            folder,
            _quoted(lost),
        )


def _quoted(tokens: Sequence[str]) -> str:
    return listed([token[:80] for token in tokens], most=4, quote=True)


def _is_line(token: str) -> bool:
    """Returns whether a token can be a line of a `vocab.txt`."""
    return token != "" and token == token.strip() and "\n" not in token


def _warn_of_differences(settings: Mapping[str, Any], folder: str) -> None:
    differences = [
        f"{name}={shortened(settings[name])}"
        for name, value in _GOOGLES.items()
        if settings.get(name, value) not in (value, None)
    ]
    name = settings.get("tokenizer_class") or _CLASSES[0]
    if name not in _CLASSES:
        differences.append(f"tokenizer_class={shortened(name)}")
    if differences:
        logging.warning(
            "%s: the tokenizer differs from bert_tf's (%s), so raw texts "
            "give different results",
            folder,
            ", ".join(differences),
        )
