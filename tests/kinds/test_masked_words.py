"""Candidates of blanks and next-sentence probabilities of a small model."""

import keras
import numpy as np
import pytest

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.kinds.masked_words.job import fill
from bert_tf.modeling.heads import BertPretrainer
from bert_tf.tasks.masked_words import MaskedWordsTask, MaskEncoding

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = (*SPECIAL, "the", "cat", "sat", "on", "mat", "##s", ".")
# The model has more positions.
ENCODING = MaskEncoding(WORDS, True, None, 13)


@pytest.fixture(scope="module")
def model() -> BertPretrainer:
    keras.utils.set_random_seed(7)
    config = BertConfig(
        vocab_size=len(WORDS) + 1,  # The table may have more rows.
        hidden_size=6,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=5,
        max_position_embeddings=19,
        type_vocab_size=2,
    )
    model = BertPretrainer(config)
    model.build()
    # Larger weights make segments matter.
    for weight in model.weights:
        weight.assign(9 * weight)
    return model


def filled(model, text, text_b=None, **options):
    task = MaskedWordsTask(model.config, ENCODING, **options)
    return fill(model, task, text, text_b)


def outputs_of(model, tokens, **more):
    """Returns the outputs for tokens; segment 1 begins after [SEP]."""
    ids = [WORDS.index(token) for token in tokens.split()]
    segments = np.cumsum([0, *(n == WORDS.index("[SEP]") for n in ids[:-1])])
    features = {
        "input_ids": np.array([ids]),
        "segment_ids": np.minimum(segments, 1)[np.newaxis],
    }
    return model(features | more)


def softmax(logits):
    exp = np.exp(np.asarray(logits, np.float64))
    return exp / exp.sum(-1, keepdims=True)


@pytest.mark.parametrize(
    ("text", "text_b", "tokens"),
    [
        ("the [MASK] sat on [MASK].", None, "the [MASK] sat on [MASK] ."),
        ("the [MASK] sat", "[MASK] mat.", "the [MASK] sat [SEP] [MASK] mat ."),
    ],
)
def test_candidates_are_the_softmax_of_their_position(
    model, text, text_b, tokens
):
    tokens, positions = f"[CLS] {tokens} [SEP]", np.array([[2, 5]])
    outputs = outputs_of(model, tokens, masked_lm_positions=positions)
    logits = outputs["masked_lm_logits"][0, :, : len(WORDS)]
    for top_k in (3, 999):
        blanks = filled(model, text, text_b, top_k=top_k).blanks
        for blank, row in zip(blanks, softmax(logits), strict=True):
            best = np.argsort(-row)[:top_k]
            assert [word for word, _ in blank] == [WORDS[i] for i in best]
            chances = [p for _, p in blank]
            np.testing.assert_allclose(chances, row[best], rtol=1e-4)


def test_next_sentence_is_the_softmax_of_its_head(model):
    for text_b, tokens in (
        ("[MASK] mat.", "[CLS] the [SEP] [MASK] mat . [SEP]"),
        ("", "[CLS] the [SEP] [SEP]"),
    ):
        logits = outputs_of(model, tokens)["next_sentence_logits"]
        follows = filled(model, "the", text_b).next_sentence
        assert follows == pytest.approx(softmax(logits)[0, 0], rel=1e-4)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("the cat", {}, r"no \[MASK\]: 'the cat'"),
        ("cat " * 11 + "[MASK]", {}, r"^A \[MASK\] is beyond max_seq_length, "),
        ("cat", {"text_b": "cat " * 9 + "[MASK]"}, "beyond max_seq_length"),
    ],
)
def test_invalid_arguments(model, text, options, message):
    with pytest.raises(InputError, match=message):
        filled(model, text, **options)


def test_long_texts_are_truncated(model):
    longest = filled(model, "[MASK]" + " cat" * 10).blanks
    assert filled(model, "[MASK]" + " cat" * 99).blanks == longest
    filled(model, "cat " * 10 + "[MASK]")
    follows = filled(model, "cat " * 9, "mat").next_sentence
    assert filled(model, "cat " * 99, "mat").next_sentence == follows
