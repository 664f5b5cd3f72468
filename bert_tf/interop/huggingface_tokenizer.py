"""The tokenizer of a Hugging Face folder: vocabulary and casing.

`vocab.txt` contains the tokens; if it is missing, `tokenizer.json` does. The
casing is in `tokenizer_config.json` or `tokenizer.json`. Tokens added later are
in `added_tokens.json` (transformers 4), `tokenizer.json` or
`tokenizer_config.json`; their ids follow those of the vocabulary.

Hugging Face's tokenizer differs from Google's in two ways: it maps words of
more than 100 characters to [UNK] (Google's: 200), and it finds special and
added tokens in the text. Reading a tokenizer that differs in more logs a
warning.
"""

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from bert_tf import files
from bert_tf.errors import in_file, listed, shortened, wrong_value
from bert_tf.interop.checkpoint import VOCABULARY, write_vocabulary
from bert_tf.tokenization.wordpiece import CONTINUATION, read_tokens

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


@dataclasses.dataclass(frozen=True)
class TokenizerSettings:
    """A folder's vocabulary and casing; see `Pretrained`."""

    vocab: tuple[str, ...] | None = None
    do_lower_case: bool | None = None
    strip_accents: bool | None = None


def read(folder: str, vocab_size: int) -> TokenizerSettings:
    """Reads a folder's tokenizer; does not validate the lines of `vocab.txt`.

    Added tokens have no embedding, and are left out, if their id is not below
    `vocab_size`. Raises InputError if a file is invalid, or the tokenizer is
    not BERT's.
    """
    names = (TOKENIZER, SETTINGS, ADDED)
    paths = [os.path.join(folder, name) for name in names]
    whole, own, added_tokens = (
        files.read_json(path) if files.exists(path) else {} for path in paths
    )
    settings = _normalizer(whole) | own
    vocab_file = os.path.join(folder, VOCABULARY)
    vocab = None
    if files.exists(vocab_file):
        vocab = tuple(read_tokens(vocab_file))
    elif whole:
        vocab = _vocabulary(whole, os.path.join(folder, TOKENIZER))
    if vocab is not None:
        pairs = ((n, token) for token, n in added_tokens.items())
        entries = [*_added_entries(whole, own), *pairs]
        added = _check_added(entries, vocab, folder)
        vocab += _extra_tokens(added, len(vocab), vocab_size, folder)
    for name in ("do_lower_case", "strip_accents"):
        if not isinstance(settings.get(name), bool | None):
            requirement = "true, false or null"
            where = f"{folder}: {name} of the tokenizer"
            raise wrong_value(where, requirement, settings[name])
    _warn_of_differences(settings, folder)
    return TokenizerSettings(
        vocab, settings.get("do_lower_case"), settings.get("strip_accents")
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
    model = whole.get("model")
    model = model if isinstance(model, dict) else {"type": None}
    # Older files do not have the type of their model.
    kind = model.get("type", "WordPiece")
    prefix = model.get("continuing_subword_prefix")
    if kind != "WordPiece" or prefix != CONTINUATION:
        raise in_file(
            path,
            f"the tokenizer must be WordPiece with the prefix {CONTINUATION!r};"
            f" got {kind!r} with {prefix!r}.",
        )
    ids = model.get("vocab")
    if not isinstance(ids, dict) or not ids:
        raise in_file(
            path, f"'vocab' must map tokens to ids; got {shortened(ids, 60)}."
        )
    by_id = {n: token for token, n in ids.items() if isinstance(n, int)}
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
                f"token {number}, {token!r}, cannot be a line of vocab.txt.",
            )
    return tuple(by_id[number] for number in range(len(ids)))


def _added_entries(
    whole: Mapping[str, Any], settings: Mapping[str, Any]
) -> Iterator[tuple[Any, Any]]:
    """Yields (id, token) as `tokenizer.json` and the settings have them."""
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
    entries: Sequence[tuple[Any, Any]], vocab: Sequence[str], folder: str
) -> dict[int, str]:
    """Returns the added tokens by id, if none contradict others or `vocab`."""
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
            known = f", which has id {ids[token]}" if token in ids else ""
            raise in_file(
                folder,
                f"ids of added tokens must follow the vocabulary's {len(vocab)}"
                f"; got {token!r} with id {number}{known}.",
            )
        if other != token:
            raise in_file(
                folder,
                f"both {other!r} and {token!r} have id {number}. Correct "
                f"{VOCABULARY}, {TOKENIZER}, {SETTINGS} or {ADDED}.",
            )
    return added


def _extra_tokens(
    added: Mapping[int, str], start: int, vocab_size: int, folder: str
) -> tuple[str, ...]:
    """Returns the added tokens after a vocabulary of `start` tokens.

    Tokens that cannot be a line of `vocab.txt` are replaced by a word that
    never occurs, [unused<id>].
    """
    more = sorted(number for number in added if start <= number < vocab_size)
    if more and more[-1] != start + len(more) - 1:
        gap = next(n for n in range(start, more[-1]) if n not in added)
        raise in_file(
            folder,
            f"no token has id {gap}, but {added[more[-1]]!r} has {more[-1]}. "
            f"Ids of added tokens must be consecutive from {start}.",
        )
    odd = [n for n in more if not _is_line(added[n])]
    beyond = [number for number in added if number >= vocab_size]
    if more or beyond:
        tokens = [added[n][:80] for n in (*more, *beyond)]
        faults = "".join(
            f"; {count} left out, {reason}"
            for count, reason in (
                (len(odd), "with outer white space or several lines"),
                (len(beyond), "without an embedding"),
            )
            if count
        )
        logging.warning(
            "%s adds %d tokens to its vocabulary (%s): transformers finds them "
            "anywhere in a text, this project treats them as words%s",
            folder,
            len(tokens),
            listed(tokens, most=4, quote=True),
            faults,
        )
    return tuple(f"[unused{n}]" if n in odd else added[n] for n in more)


def _is_line(token: str) -> bool:
    """Returns whether a token can be a line of a `vocab.txt`."""
    return token != "" and token == token.strip() and "\n" not in token


def _warn_of_differences(settings: Mapping[str, Any], folder: str) -> None:
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
            "%s: the tokenizer differs from this project's (%s), so raw texts "
            "give other results",
            folder,
            ", ".join(differences),
        )
