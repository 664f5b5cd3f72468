"""Blanks are filled at their places, with real probabilities."""

import keras
import numpy as np
import pytest

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.heads import BertPretrainer
from bert_tf.tasks.fill_mask import fill_mask
from bert_tf.text.wordpiece import FullTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIAL, "the", "cat", "sat", "on", "mat", "##s", "."]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> FullTokenizer:
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(WORDS) + "\n")
    return FullTokenizer(str(path))


@pytest.fixture(scope="module")
def model() -> BertPretrainer:
    keras.utils.set_random_seed(7)
    model = BertPretrainer(
        BertConfig(
            vocab_size=len(WORDS),
            hidden_size=6,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=5,
            max_position_embeddings=13,
            type_vocab_size=2,
        )
    )
    model.build()
    return model


def test_candidates_are_the_softmax_of_their_position(model, tokenizer):
    blanks = fill_mask(model, tokenizer, "the [MASK] sat on [MASK].", top_k=3)
    tokens = ["[CLS]", "the", "[MASK]", "sat", "on", "[MASK]", ".", "[SEP]"]
    ids = [WORDS.index(token) for token in tokens]
    logits = model(
        {
            "input_ids": np.array([ids]),
            "masked_lm_positions": np.array([[2, 5]]),
        }
    )["masked_lm_logits"][0]
    expected = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    assert len(blanks) == 2
    for blank, row in zip(blanks, expected, strict=True):
        best = np.argsort(-row)[:3]
        assert [word for word, _ in blank] == [WORDS[i] for i in best]
        np.testing.assert_allclose([p for _, p in blank], row[best], rtol=1e-5)


def test_all_candidates_sum_to_one(model, tokenizer):
    (blank,) = fill_mask(model, tokenizer, "[MASK]", top_k=len(WORDS))
    assert sorted(word for word, _ in blank) == sorted(WORDS)
    assert sum(p for _, p in blank) == pytest.approx(1.0)


def test_more_candidates_than_words_gives_all(model, tokenizer):
    (blank,) = fill_mask(model, tokenizer, "[MASK]", top_k=999)
    assert len(blank) == len(WORDS)


@pytest.mark.parametrize("top_k", [0, -1])
def test_no_candidates_asked_for(model, tokenizer, top_k):
    with pytest.raises(InputError, match=f"top_k .* Received: {top_k}"):
        fill_mask(model, tokenizer, "[MASK]", top_k=top_k)


def test_no_blank(model, tokenizer):
    with pytest.raises(InputError, match=r"\[MASK\].* Received: 'the cat'"):
        fill_mask(model, tokenizer, "the cat")


def test_too_long(model, tokenizer):
    fill_mask(model, tokenizer, "cat " * 10 + "[MASK]")
    with pytest.raises(InputError, match=r"at most 11 pieces.* Received: 12"):
        fill_mask(model, tokenizer, "cat " * 11 + "[MASK]")
