"""What every way from texts to features has: a vocabulary and a length."""

import dataclasses
import functools

from bert_tf.text.wordpiece import FullTokenizer, require_special_tokens


@dataclasses.dataclass(frozen=True)
class TextEncoding:
    """How texts become sequences of ids; each kind of task adds its own.

    Attributes:
      vocab: The tokens, in the order of their ids.
      do_lower_case: Whether it is an uncased vocabulary.
      strip_accents: Whether to drop accents; None does as `do_lower_case`.
      max_seq_length: Places of a sequence, special tokens included.
    """

    vocab: tuple[str, ...]
    do_lower_case: bool
    strip_accents: bool | None
    max_seq_length: int

    @property
    def tokenizer(self) -> FullTokenizer:
        """Of this vocabulary and casing; made once in each process.

        Raises:
          InputError: The vocabulary lacks a special token.
        """
        return _tokenizer(self.vocab, self.do_lower_case, self.strip_accents)


@functools.lru_cache(maxsize=1)
def _tokenizer(
    vocab: tuple[str, ...], do_lower_case: bool, strip_accents: bool | None
) -> FullTokenizer:
    tokenizer = FullTokenizer(vocab, do_lower_case, strip_accents)
    require_special_tokens(tokenizer.vocab, ["[CLS]", "[SEP]"])
    return tokenizer
