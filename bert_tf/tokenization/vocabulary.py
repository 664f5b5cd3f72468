"""Learns a WordPiece vocabulary from text.

The trainer of Hugging Face's `tokenizers` starts from single characters and
joins the most frequent pair of pieces, again and again. It gets words from
`normalization`, so that vocabulary and tokenizer agree, and all
single-character pieces in a fixed order: on its own it would number them in the
order of a hash table and break ties between pairs differently in every run.
"""

import collections
from collections.abc import Iterable, Iterator, Mapping

import tokenizers
from absl import logging
from tokenizers import models, pre_tokenizers, trainers

from bert_tf.errors import InputError, wrong_value
from bert_tf.tokenization import normalization
from bert_tf.tokenization.vocabulary_file import CONTINUATION, SPECIAL_TOKENS

# Longer words are links and noise. Also keeps pieces within the 256 bytes of
# UTF-8 that the tokenizer in the graph can hold.
_MAX_CHARACTERS = 63
_MAX_PENDING_CHUNKS = 1 << 19
_WORDS_PER_TEXT = 1_000


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
      min_frequency: The lowest frequency of a character or pair to use it.
      limit_alphabet: The largest number of characters.

    Returns:
      [PAD], [UNK], [CLS], [SEP], [MASK], [unused0] ..., single characters,
      then pieces in the order in which they were learned.

    Raises:
      InputError: If there are no words, or too few for `vocab_size`, or if
        `vocab_size` is too small.
    """
    if not words:
        raise InputError("There are no words to learn from.")
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
