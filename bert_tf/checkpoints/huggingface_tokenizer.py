"""The tokenizer of a Hugging Face folder: vocabulary and casing.

`vocab.txt` contains the tokens; if it is missing, `tokenizer.json` does. The
casing is in `tokenizer_config.json` or `tokenizer.json`. Tokens added later are
in `added_tokens.json` (transformers 4), `tokenizer.json` or
`tokenizer_config.json`; their ids follow the vocabulary's.

Reading a tokenizer logs a warning if it differs from Google's. Two differences
are usual and not reported: Hugging Face's maps words over 100 characters to
[UNK] (Google's: 200), and finds special and added tokens in the text.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tokenizers
from absl import logging

from bert_tf.base import files
from bert_tf.checkpoints.checkpoint import (
    BOOLEAN,
    OBJECT,
    TEXT,
    VOCABULARY,
    Pretrained,
    read_settings,
    write_json,
    write_vocabulary,
)
from bert_tf.checkpoints.huggingface_weights import quoted
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
# What Google's tokenizer always does, as settings of transformers.
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


def read(folder: str, vocab_size: int) -> dict[str, Any]:
    """Reads a folder's tokenizer; does not validate the lines of `vocab.txt`.

    Added tokens whose id is not below `vocab_size` have no embedding and are
    left out.

    Returns:
      The vocabulary and the casing: fields of `Pretrained` by name.

    Raises:
      InputError: If a file is invalid, or the tokenizer is not BERT's.
    """
    whole = _read_whole(folder)
    own = read_settings(folder, SETTINGS, _IN_SETTINGS)
    settings = _normalizer(whole) | own
    _warn_of_differences(settings, folder)
    casing = {n: settings.get(n) for n in ("do_lower_case", "strip_accents")}
    if path := files.find_in(folder, VOCABULARY):
        vocab = tuple(read_tokens(path))
    elif whole:
        vocab = _vocabulary(whole, os.path.join(folder, TOKENIZER))
    else:
        return casing
    entries = [*_added_entries(whole, own, folder)]
    added = {n: x for n, x in sorted(entries) if n < vocab_size}
    _warn_of_lost(added.values(), casing, folder)
    return {**casing, "vocab": _with_added(vocab, entries, vocab_size, folder)}


def _read_whole(folder: str) -> tokenizers.Tokenizer | None:
    """Reads `tokenizer.json`; None if it is missing."""
    path = files.find_in(folder, TOKENIZER)
    if path is None:
        return None
    text = files.read_text(path)
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # tokenizers raises a plain Exception.
        raise in_file(
            path, f"the file is not a tokenizer: {reason(error)}."
        ) from None


def write(folder: str, pretrained: Pretrained, model_max_length: int) -> None:
    """Writes `vocab.txt` and `tokenizer_config.json`.

    transformers builds its tokenizer from these two. `tokenizer.json` is not
    written, since transformers 5 would take only the vocabulary from it.
    """
    if pretrained.vocab is not None:
        write_vocabulary(folder, pretrained.vocab)
    path = os.path.join(folder, SETTINGS)
    settings = {
        "model_max_length": model_max_length,
        "strip_accents": pretrained.strip_accents,
        "tokenize_chinese_chars": True,
        "tokenizer_class": "BertTokenizer",
    }
    if pretrained.do_lower_case is None:
        logging.warning(
            "The casing of the vocabulary is unknown; transformers will "
            "lower-case texts unless %s sets do_lower_case",
            path,
        )
    else:
        settings["do_lower_case"] = pretrained.do_lower_case
    write_json(path, settings)


def _normalizer(whole: tokenizers.Tokenizer | None) -> dict[str, Any]:
    """Returns the casing of a `tokenizer.json` as settings."""
    steps: Any = whole and whole.normalizer
    if not isinstance(steps, tokenizers.normalizers.Sequence):
        steps = [steps]
    for step in steps:
        if isinstance(step, tokenizers.normalizers.BertNormalizer):
            return {
                "do_lower_case": step.lowercase,
                "strip_accents": step.strip_accents,
                "clean_text": step.clean_text,
                "handle_chinese_chars": step.handle_chinese_chars,
            }
    return {}


def _vocabulary(whole: tokenizers.Tokenizer, path: str) -> tuple[str, ...]:
    """Returns the tokens of a `tokenizer.json` in the order of their ids."""
    kind = type(whole.model).__name__
    prefix = getattr(whole.model, "continuing_subword_prefix", None)
    if (kind, prefix) != ("WordPiece", CONTINUATION):
        raise in_file(
            path,
            f"the tokenizer must be WordPiece with the prefix {CONTINUATION!r};"
            f" got {kind} with {shortened(prefix)}.",
        )
    ids = whole.get_vocab(with_added_tokens=False)
    tokens = sorted(ids, key=ids.__getitem__)
    if sorted(ids.values()) != [*range(len(ids))]:
        raise in_file(
            path, f"the ids of the tokens must be 0 to {len(ids) - 1}."
        )
    return tuple(map(_as_line, range(len(ids)), tokens))


def _added_entries(
    whole: tokenizers.Tokenizer | None,
    settings: Mapping[str, Any],
    folder: str,
) -> Iterator[tuple[int, str]]:
    """Yields the ids and added tokens of the three files."""
    if whole:
        for number, added in whole.get_added_tokens_decoder().items():
            yield number, added.content
    in_file_of_version_4 = read_settings(folder, ADDED, {})
    pairs = [
        *(settings.get("added_tokens_decoder") or {}).items(),
        *((n, token) for token, n in in_file_of_version_4.items()),
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
    vocab: tuple[str, ...],
    entries: Iterable[tuple[int, str]],
    vocab_size: int,
    folder: str,
) -> tuple[str, ...]:
    """Appends the added tokens that follow a vocabulary."""
    tokens = dict(enumerate(vocab))
    for number, token in entries:
        other = tokens.setdefault(number, token)
        if other not in (token, token.strip()):
            raise in_file(
                folder,
                f"both {shortened(other)} and {shortened(token)} have id "
                f"{number}. Correct {VOCABULARY}, {TOKENIZER}, {SETTINGS} or "
                f"{ADDED}.",
            )
    more = sorted(n for n in tokens if len(vocab) <= n < vocab_size)
    if more != [*range(len(vocab), len(vocab) + len(more))]:
        raise in_file(
            folder,
            f"the ids of added tokens must be consecutive from {len(vocab)}; "
            f"got {listed(more)}.",
        )
    return (*vocab, *(_as_line(number, tokens[number]) for number in more))


def _warn_of_lost(
    added: Iterable[str], casing: Mapping[str, bool | None], folder: str
) -> None:
    """Warns of added tokens that the tokenizer never finds in a text."""
    # An unknown casing counts as cased, which changes fewer tokens.
    lowers = bool(casing["do_lower_case"])
    normalize = Normalizer(lowers, casing["strip_accents"])
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
            quoted(lost),
        )


def _as_line(number: int, token: str) -> str:
    """Returns a token as a line of `vocab.txt`.

    If it cannot be a line, it becomes a word that never occurs, [unused<id>].
    """
    is_line = token != "" and token == token.strip() and "\n" not in token
    return token if is_line else f"[unused{number}]"


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
