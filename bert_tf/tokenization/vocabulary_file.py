"""Vocabulary files: one token per line."""

import os
from collections.abc import Iterable, Sequence

from absl import logging

from bert_tf.base import files
from bert_tf.errors import InputError, in_file, listed, wrong_value

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# The first characters of tokens that continue a word.
CONTINUATION = "##"
# The id of the only blank line in the Chinese vocabulary of Google: U+2028.
_BLANK_OF_GOOGLE = 343


def load_vocab(
    vocabulary: str | os.PathLike[str] | Sequence[str],
    where: str | None = None,
) -> dict[str, int]:
    """Reads a vocabulary with one token per line; ids count from 0.

    A blank line is a token that never occurs, which a warning names; see
    `read_tokens`.

    Args:
      vocabulary: A local or remote path; or the tokens in the order of their
        ids.
      where: The name of the vocabulary in messages. By default the path.

    Returns:
      A dict from tokens to ids, in the order of the ids.

    Raises:
      InputError: If the file is missing, is empty, is not UTF-8 or has a
        duplicate token.
    """
    where = where or source_of(vocabulary)
    if isinstance(vocabulary, (str, os.PathLike)):
        vocabulary = read_tokens(str(vocabulary))
    if not isinstance(vocabulary, Iterable):
        raise wrong_value(
            "A vocabulary", "a path or a list of tokens", vocabulary
        )
    vocab: dict[str, int] = {}
    for index, token in enumerate(vocabulary):
        if not isinstance(token, str):
            raise wrong_value(f"Token {index} of {where}", "a string", token)
        if not token and index != _BLANK_OF_GOOGLE:
            logging.warning(
                "%s:%d: the token is empty and never occurs, but has an id. If "
                "the original has no such line, remove it",
                where,
                index + 1,
            )
        if token in vocab:
            raise in_file(
                where,
                f"the token {token!r} is also on line {vocab[token] + 1}. "
                "Change one of the two to an unused name, which keeps the ids "
                "of the tokens after it.",
                index + 1,
            )
        vocab[token] = index
    if not vocab:
        raise in_file(where, "the vocabulary is empty.")
    return vocab


def read_tokens(path: str) -> list[str]:
    """Reads the tokens of a vocabulary file without validating them.

    Lines end at "\\n" only. White space around a token and a byte order mark
    are removed. A blank line is a token (Google's Chinese vocabulary has one),
    except at the end.

    Raises:
      InputError: If the file cannot be read or is not UTF-8.
    """
    tokens = [line.strip() for line in files.read_text(path).split("\n")]
    while tokens and not tokens[-1]:
        tokens.pop()
    return tokens


def source_of(vocabulary: str | os.PathLike[str] | Sequence[str]) -> str:
    """Returns the name of a vocabulary in messages."""
    if isinstance(vocabulary, (str, os.PathLike)):
        return str(vocabulary)
    return "a list of tokens"


def require_special_tokens(
    vocab: dict[str, int],
    names: Iterable[str] = SPECIAL_TOKENS,
    path: str | os.PathLike[str] = "the vocabulary",
) -> None:
    """Raises InputError if the vocabulary lacks one of the tokens `names`."""
    missing = [name for name in names if name not in vocab]
    if missing:
        raise InputError(
            f"{path} has {len(vocab):,} tokens, but not {listed(missing)}. "
            "Use the vocab.txt of a BERT model."
        )


def require_fit(
    vocab: dict[str, int], vocab_size: int, path: str | os.PathLike[str]
) -> None:
    """Raises InputError if a vocabulary does not fit a model."""
    require_special_tokens(vocab, path=path)
    if len(vocab) > vocab_size:
        raise in_file(
            path,
            f"has {len(vocab)} tokens, more than the model's vocab_size of "
            f"{vocab_size}.",
        )
    warn_if_short(vocab, vocab_size, path)


def warn_if_short(
    vocab: dict[str, int], vocab_size: int, path: str | os.PathLike[str]
) -> None:
    """Warns if a model has more tokens than its vocabulary."""
    if len(vocab) < vocab_size:
        logging.warning(
            "%s has %d tokens, fewer than the model's vocab_size of %d. If the "
            "file is truncated, copy it again.",
            path,
            len(vocab),
            vocab_size,
        )
