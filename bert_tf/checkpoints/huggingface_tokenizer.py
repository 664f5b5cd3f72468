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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tokenizers
from absl import logging

from bert_tf.base import files
from bert_tf.checkpoints import settings_files
from bert_tf.checkpoints.checkpoint import VOCABULARY, write_vocabulary
from bert_tf.checkpoints.settings_files import BOOLEAN, OBJECT, TEXT
from bert_tf.errors import in_file, listed, reason, shortened
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
_IN_SETTINGS = {
    "do_lower_case": BOOLEAN,
    "strip_accents": BOOLEAN,
    **dict.fromkeys(_GOOGLES, BOOLEAN),
    "tokenizer_class": TEXT,
    "added_tokens_decoder": OBJECT,
}


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
    whole = _read_whole(folder)
    own = settings_files.read(folder, SETTINGS, _IN_SETTINGS)
    settings = _normalizer(whole) | own
    vocab = None
    if path := files.find_in(folder, VOCABULARY):
        vocab = tuple(read_tokens(path))
    elif whole:
        vocab = _vocabulary(whole, os.path.join(folder, TOKENIZER))
    tokenizer = TokenizerSettings(
        vocab, settings.get("do_lower_case"), settings.get("strip_accents")
    )
    if vocab is not None:
        entries = _added_entries(whole, own, folder)
        tokenizer = _with_added(tokenizer, entries, vocab_size, folder)
    _warn_of_differences(settings, folder)
    return tokenizer


def _read_whole(folder: str) -> dict[str, Any]:
    """Reads `tokenizer.json`, which the library validates; {} if missing."""
    path = files.find_in(folder, TOKENIZER)
    if path is None:
        return {}
    whole: dict[str, Any] = settings_files.read_json(path)
    try:
        tokenizers.Tokenizer.from_str(json.dumps(whole))
    except Exception as error:  # It raises no particular class.
        raise in_file(
            path, f"the file is not a tokenizer: {reason(error)}."
        ) from None
    return whole


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
    model = whole["model"]
    # Older files do not record the type of their model.
    kind = model.get("type", "WordPiece")
    prefix = model.get("continuing_subword_prefix")
    if kind != "WordPiece" or prefix != CONTINUATION:
        raise in_file(
            path,
            f"the tokenizer must be WordPiece with the prefix {CONTINUATION!r};"
            f" got {shortened(kind)} with {shortened(prefix)}.",
        )
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    if [*map(model["vocab"].get, tokens)] != [*range(len(tokens))]:
        raise in_file(
            path, f"the ids of the tokens must be 0 to {len(tokens) - 1}."
        )
    for number, token in enumerate(tokens):
        if token and not _is_line(token):
            raise in_file(
                path,
                f"token {number}, {shortened(token)}, cannot be a line of "
                "vocab.txt.",
            )
    return tuple(tokens)


def _added_entries(
    whole: Mapping[str, Any], settings: Mapping[str, Any], folder: str
) -> Iterator[tuple[int, str]]:
    """Yields the ids and added tokens of the three files."""
    for entry in whole.get("added_tokens", []):
        yield entry["id"], entry["content"]
    pairs = [
        *((settings.get("added_tokens_decoder") or {}).items()),
        *(
            (n, token)
            for token, n in settings_files.read(folder, ADDED, {}).items()
        ),
    ]
    for number, token in pairs:
        if isinstance(token, dict):
            token = token.get("content")
        is_number = re.fullmatch(r"\d{1,9}", str(number), re.ASCII)
        if not is_number or not isinstance(token, str):
            raise in_file(
                folder,
                "added tokens must be strings with integer ids; got "
                f"{shortened(token)} with id {shortened(number)}.",
            )
        yield int(number), token


def _with_added(
    tokenizer: TokenizerSettings,
    entries: Iterable[tuple[int, str]],
    vocab_size: int,
    folder: str,
) -> TokenizerSettings:
    """Appends the added tokens that follow the vocabulary of a tokenizer.

    Tokens that cannot be a line of `vocab.txt` are replaced by a word that
    never occurs, [unused<id>].
    """
    vocab = tokenizer.vocab or ()
    tokens = dict(enumerate(vocab))
    added: dict[int, str] = {}
    for number, token in entries:
        added[number] = token
        other = tokens.setdefault(number, token)
        if other not in (token, token.strip()):
            raise in_file(
                folder,
                f"both {shortened(other)} and {shortened(token)} have id "
                f"{number}. Correct {VOCABULARY}, {TOKENIZER}, {SETTINGS} or "
                f"{ADDED}.",
            )
    new = sorted(tokens.keys() - range(len(vocab)))
    more = [number for number in new if number < vocab_size]
    if more != [*range(len(vocab), len(vocab) + len(more))]:
        raise in_file(
            folder,
            f"the ids of added tokens must be consecutive from {len(vocab)}; "
            f"got {listed(more)}.",
        )
    if new:
        logging.warning(
            "%s adds %d tokens to its vocabulary (%s): transformers finds them "
            "anywhere in a text, bert_tf treats them as words, and ignores %d "
            "without an embedding",
            folder,
            len(new),
            _quoted([tokens[number] for number in new]),
            len(new) - len(more),
        )
    _warn_of_lost(
        [t for n, t in sorted(added.items()) if n < vocab_size and _is_line(t)],
        tokenizer,
        folder,
    )
    lines = (
        tokens[number] if _is_line(tokens[number]) else f"[unused{number}]"
        for number in more
    )
    return dataclasses.replace(tokenizer, vocab=(*vocab, *lines))


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
