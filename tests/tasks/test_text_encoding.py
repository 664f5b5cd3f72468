import dataclasses
import pickle

import pytest

from bert_tf.errors import InputError
from bert_tf.tasks.encoding import TextEncoding

VOCAB = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "É", "é", "e")


def test_the_tokenizer_has_the_casing():
    encoding = TextEncoding(VOCAB, True, None, 7)
    assert encoding.tokenizer.tokenize("É") == ["e"]
    keeping = dataclasses.replace(encoding, strip_accents=False)
    assert keeping.tokenizer.tokenize("É") == ["é"]
    cased = dataclasses.replace(encoding, do_lower_case=False)
    assert cased.tokenizer.tokenize("É") == ["É"]


def test_the_tokenizer_is_made_once():
    @dataclasses.dataclass(frozen=True)
    class Another(TextEncoding):
        labels: tuple[str, ...] = ()

    encoding = TextEncoding(VOCAB, True, None, 7)
    first = encoding.tokenizer
    assert Another(VOCAB, True, None, 5, ("a",)).tokenizer is first
    assert pickle.loads(pickle.dumps(encoding)).tokenizer is first


def test_a_vocabulary_has_the_special_tokens():
    encoding = TextEncoding(("[PAD]", "[UNK]", "[CLS]"), True, None, 7)
    with pytest.raises(InputError, match=r"\[SEP\]"):
        _ = encoding.tokenizer
