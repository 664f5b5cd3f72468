"""Candidates of blanks and next-sentence probabilities of a small model."""

import keras
import numpy as np
import pytest

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.heads import BertPretrainer
from bert_tf.tasks.fill_mask import fill_mask, next_sentence
from bert_tf.tokenization.wordpiece import FullTokenizer

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
    # Larger weights make segments matter.
    for weight in model.weights:
        weight.assign(9 * weight)
    return model


def outputs_of(model, tokens, **more):
    """Returns the outputs for tokens; segment 1 begins after [SEP]."""
    ids = [WORDS.index(token) for token in tokens]
    start = tokens.index("[SEP]") + 1
    segments = [0] * start + [1] * (len(ids) - start)
    return model(
        {
            "input_ids": np.array([ids]),
            "segment_ids": np.array([segments]),
            **more,
        }
    )


def softmax(logits):
    exp = np.exp(np.asarray(logits, np.float64))
    return exp / exp.sum(-1, keepdims=True)


def assert_candidates(blanks, expected):
    """Compares with probabilities [blanks, V]."""
    for blank, row in zip(blanks, expected, strict=True):
        best = np.argsort(-row)[: len(blank)]
        assert [word for word, _ in blank] == [WORDS[i] for i in best]
        np.testing.assert_allclose([p for _, p in blank], row[best], rtol=1e-4)


def test_candidates_are_the_softmax_of_their_position(model, tokenizer):
    blanks = fill_mask(model, tokenizer, "the [MASK] sat on [MASK].", top_k=3)
    tokens = ["[CLS]", "the", "[MASK]", "sat", "on", "[MASK]", ".", "[SEP]"]
    positions = np.array([[2, 5]])
    outputs = outputs_of(model, tokens, masked_lm_positions=positions)
    assert [len(blank) for blank in blanks] == [3, 3]
    assert_candidates(blanks, softmax(outputs["masked_lm_logits"][0]))


PAIR = "the [MASK] sat", "[MASK] mat."
PAIR_TOKENS = [
    *("[CLS]", "the", "[MASK]", "sat", "[SEP]"),
    *("[MASK]", "mat", ".", "[SEP]"),
]


def test_blanks_of_a_pair(model, tokenizer):
    blanks = fill_mask(model, tokenizer, PAIR[0], 4, text_b=PAIR[1])
    positions = np.array([[2, 5]])
    outputs = outputs_of(model, PAIR_TOKENS, masked_lm_positions=positions)
    assert [len(blank) for blank in blanks] == [4, 4]
    assert_candidates(blanks, softmax(outputs["masked_lm_logits"][0]))
    assert len(fill_mask(model, tokenizer, "the", text_b="[MASK]")) == 1
    with pytest.raises(InputError, match=r"no \[MASK\]: \('the', 'cat'\)"):
        fill_mask(model, tokenizer, "the", text_b="cat")
    with pytest.raises(InputError, match=r"no \[MASK\]: 'the cat'"):
        fill_mask(model, tokenizer, "the cat")


def test_next_sentence_is_the_softmax_of_its_head(model, tokenizer):
    expected = outputs_of(model, PAIR_TOKENS)["next_sentence_logits"]
    follows = next_sentence(model, tokenizer, *PAIR)
    assert follows == pytest.approx(softmax(expected)[0, 0], rel=1e-4)
    assert follows != pytest.approx(
        next_sentence(model, tokenizer, *PAIR[::-1])
    )
    tokens = ["[CLS]", "the", "[SEP]", "[SEP]"]
    expected = outputs_of(model, tokens)["next_sentence_logits"]
    empty = next_sentence(model, tokenizer, "the", "")
    assert empty == pytest.approx(softmax(expected)[0, 0], rel=1e-4)


def test_all_candidates_sum_to_one(model, tokenizer):
    (blank,) = fill_mask(model, tokenizer, "[MASK]", top_k=len(WORDS))
    assert sorted(word for word, _ in blank) == sorted(WORDS)
    assert sum(p for _, p in blank) == pytest.approx(1.0)


def test_number_of_candidates(model, tokenizer):
    (blank,) = fill_mask(model, tokenizer, "[MASK]", top_k=999)
    assert len(blank) == len(WORDS)
    for top_k in (0, -1):
        with pytest.raises(InputError, match=f"top_k .* 1; got {top_k}"):
            fill_mask(model, tokenizer, "[MASK]", top_k=top_k)


def test_texts_that_are_too_long(model, tokenizer):
    fill_mask(model, tokenizer, "cat " * 10 + "[MASK]")
    with pytest.raises(InputError, match=r"text has 12 tokens.* for 11"):
        fill_mask(model, tokenizer, "cat " * 11 + "[MASK]")
    next_sentence(model, tokenizer, "cat " * 9, "mat")
    message = r"pair has 11 tokens; .* 13 positions .* for 10"
    with pytest.raises(InputError, match=message):
        next_sentence(model, tokenizer, "cat " * 10, "mat")
    with pytest.raises(InputError, match=message):
        fill_mask(model, tokenizer, "[MASK]", text_b="cat " * 10)
