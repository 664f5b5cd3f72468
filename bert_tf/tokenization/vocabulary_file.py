"""Vocabularies: files with one token per line, and how to learn one from text.

The trainer of Hugging Face's `tokenizers` starts from single characters and
joins the most frequent pair of pieces, again and again. It gets words from
`normalization`, so that vocabulary and tokenizer agree. It also gets all
single-character pieces, in a fixed order. By itself it would number them in the
order of a hash table, and so break ties between pairs differently in every run.
"""

import collections
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence

from absl import logging

from bert_tf.base import files
from bert_tf.errors import InputError, in_file, listed, wrong_value
from bert_tf.tokenization import normalization

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# The first characters of tokens that continue a word.
CONTINUATION = "##"
# The id of the only blank line in the Chinese vocabulary of Google: U+2028.
_BLANK_OF_GOOGLE = 343

# Longer words are links and noise. With this limit, pieces fit into the 256
# bytes of UTF-8 that the tokenizer in the graph can hold.
_MAX_CHARACTERS = 63
_MAX_PENDING_CHUNKS = 1 << 19
_WORDS_PER_TEXT = 1_000


def load_vocab(
    vocabulary: str | os.PathLike[str] | Sequence[str],
    where: str | None = None,
) -> dict[str, int]:
    """Reads a vocabulary with one token per line; ids count from 0.

    A blank line is a token that never occurs (see `read_tokens`). A warning
    names it, except for the one in Google's Chinese vocabulary.

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
    vocab: dict[str, int] = {}
    for index, token in enumerate(vocabulary):
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
    """Raises InputError if a vocabulary does not fit a model.

    Warns if the model has more tokens than the vocabulary.
    """
    require_special_tokens(vocab, path=path)
    if len(vocab) > vocab_size:
        raise in_file(
            path,
            f"has {len(vocab)} tokens, more than the model's vocab_size of "
            f"{vocab_size}.",
        )
    if len(vocab) < vocab_size:
        logging.warning(
            "%s has %d tokens, fewer than the model's vocab_size of %d. If the "
            "file is truncated, copy it again.",
            path,
            len(vocab),
            vocab_size,
        )


# Learning a vocabulary.


def count_words(
    texts: Iterable[str], normalizer: normalization.Normalizer
) -> collections.Counter[str]:
    """Counts the words of up to 63 characters.

    Args:
      texts: Lines or larger texts; each is read once. No word continues from
        one to the next.
      normalizer: Splits text into words.
    """
    words: collections.Counter[str] = collections.Counter()
    # Most strings between two spaces occur often: normalize each only once.
    chunks: collections.Counter[str] = collections.Counter()

    def split_chunks() -> None:
        for chunk, count in chunks.items():
            for word in normalizer(chunk).split():
                if len(word) <= _MAX_CHARACTERS:
                    words[word] += count
        chunks.clear()

    for text in texts:
        chunks.update(normalization.clean(text).split())
        if len(chunks) > _MAX_PENDING_CHUNKS:
            split_chunks()
    split_chunks()
    return words


def learn_vocabulary(
    words: Mapping[str, int],
    vocab_size: int,
    *,
    num_unused_tokens: int = 0,
    min_frequency: int = 2,
    limit_alphabet: int | None = None,
) -> list[str]:
    """Learns a vocabulary; equal words and settings give equal vocabularies.

    The alphabet consists of the most frequent characters, as many as
    `limit_alphabet` and `vocab_size` allow. Words with other characters will be
    [UNK], so nothing is learned from them.

    Args:
      words: Normalized words and their counts, in any order.
      vocab_size: The exact number of tokens to return.
      num_unused_tokens: The number of [unusedN] after the special tokens.
      min_frequency: The lowest frequency of a character or pair that is used.
      limit_alphabet: The largest number of characters.

    Returns:
      [PAD], [UNK], [CLS], [SEP], [MASK], [unused0] ..., single characters,
      then pieces in the order in which they were learned.

    Raises:
      InputError: If there are too few words for `vocab_size`, or if
        `vocab_size` is too small.
    """
    tokens = [*SPECIAL_TOKENS]
    tokens += [f"[unused{i}]" for i in range(num_unused_tokens)]
    room = vocab_size - len(tokens)
    if room <= 0:
        raise wrong_value(
            "vocab_size",
            f"larger than the number of special and unused tokens, "
            f"{len(tokens)}",
            vocab_size,
        )
    alphabet = _choose_alphabet(words, min_frequency, limit_alphabet, room)
    words_of_alphabet = {
        w: n for w, n in words.items() if alphabet.issuperset(w)
    }
    total = sum(words.values())
    logging.info(
        "Alphabet: %d characters, which spell %.3f %% of %d words",
        len(alphabet),
        100 * sum(words_of_alphabet.values()) / max(total, 1),
        total,
    )
    tokens += _learn_pieces(words_of_alphabet, room, min_frequency)
    if len(tokens) < vocab_size:
        raise InputError(
            f"The {total} words of the text give only {len(tokens)} tokens "
            f"that occur at least {min_frequency} times; vocab_size is "
            f"{vocab_size}. Lower vocab_size or min_frequency, or add text."
        )
    return tokens


def _choose_alphabet(
    words: Mapping[str, int],
    min_frequency: int,
    limit: int | None,
    room: int,
) -> set[str]:
    """Returns the most frequent characters whose pieces fit into `room`.

    A character that occurs at the start of words and inside of words needs two
    pieces ("a" and "##a"). Ideographs and punctuation, which are always alone,
    need one.
    """
    counts: collections.Counter[str] = collections.Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    frequent = [c for c, count in counts.items() if count >= min_frequency]
    starts, inner = _positions(words)
    alphabet = set()
    for character in sorted(frequent, key=lambda c: (-counts[c], c))[:limit]:
        room -= (character in starts) + (character in inner)
        if room < 0:
            break
        alphabet.add(character)
    return alphabet


def _positions(words: Iterable[str]) -> tuple[set[str], set[str]]:
    """Returns the first characters of words, and all their other characters."""
    starts: set[str] = set()
    inner: set[str] = set()
    for word in words:
        starts.add(word[0])
        inner.update(word[1:])
    return starts, inner


def _learn_pieces(
    words: Mapping[str, int], size: int, min_frequency: int
) -> list[str]:
    """Runs the trainer; returns up to `size` pieces."""
    import tokenizers
    from tokenizers import models, pre_tokenizers, trainers

    starts, inner = _positions(words)
    # The trainer ignores characters that are not pieces of their own. Those
    # that never start a word are added for training and removed afterwards.
    added = inner - starts
    letters = sorted(starts | inner)
    letters += [CONTINUATION + c for c in sorted(inner)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=size + len(added),
        min_frequency=min_frequency,
        special_tokens=letters,
        continuing_subword_prefix=CONTINUATION,
        show_progress=False,
    )
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator(_repeated(words), trainer)
    vocab = tokenizer.get_vocab()
    return [
        token
        for token in sorted(vocab, key=vocab.__getitem__)
        if token not in added
    ]


def _repeated(words: Mapping[str, int]) -> Iterator[str]:
    """Yields texts with each word repeated: the trainer takes no counts."""
    for word, count in words.items():
        for start in range(0, count, _WORDS_PER_TEXT):
            yield " ".join([word] * min(_WORDS_PER_TEXT, count - start))
