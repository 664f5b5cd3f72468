"""A larger vocabulary: which weights are copied and which are new."""

import keras
import numpy as np
import pytest
from keras import ops

from bert_tf.errors import InputError
from bert_tf.modeling.encoder import BertModel, resize_vocabulary
from bert_tf.modeling.heads import BertClassifier, BertPretrainer
from bert_tf.modeling.variables import checkpoint_variables
from tests.backends import small_bert
from tests.backends.small_bert import CONFIG, H, S, V

MORE = 5
GROWING = ("bert/embeddings/word_embeddings", "cls/predictions/output_bias")


def arrays(model) -> dict[str, np.ndarray]:
    return small_bert.numbers(checkpoint_variables(model))


@pytest.mark.parametrize(
    ("model_class", "policy"),
    [
        *((model_class, "float32") for model_class in small_bert.MODELS),
        (BertPretrainer, "bfloat16"),
        (BertPretrainer, "mixed_float16"),
    ],
)
def test_only_the_vocabulary_grows(model_class, policy):
    model = small_bert.make(model_class, dtype=policy)
    model.layers[0].trainable = False
    model.weights[-1].trainable = False  # Not in the config.
    before = arrays(model)
    larger = resize_vocabulary(model, V + MORE)
    assert type(larger) is model_class
    assert larger.config.vocab_size == V + MORE
    expected = model.get_config() | {"config": larger.config.to_dict()}
    assert larger.get_config() == expected
    for old, new in zip(model.weights, larger.weights, strict=True):
        assert new.path == old.path
        assert new.dtype == old.dtype
        assert new.trainable is old.trainable
    after = arrays(larger)
    for name, value in before.items():
        np.testing.assert_array_equal(after[name][: len(value)], value)
        new = after[name][len(value) :]
        assert len(new) == (MORE if name in GROWING else 0), name
        mean = value.mean(0, keepdims=True)
        rtol = 1e-5 if policy != "bfloat16" else 1e-2
        np.testing.assert_allclose(new, mean + 0 * new, rtol=rtol, atol=1e-6)
    # The old model does not share the weights of the copy.
    for weight in larger.weights:
        weight.assign(ops.zeros_like(weight))
    for name, value in arrays(model).items():
        np.testing.assert_array_equal(value, before[name])


def test_old_words_keep_their_probability():
    """Each keeps V / (V + k) of it or more, and their odds do not change."""
    model = small_bert.make(BertPretrainer)
    larger = resize_vocabulary(model, V + MORE)
    inputs = {"input_ids": small_bert.integers("ids", (7, S), V)}
    before = np.array(ops.softmax(model(inputs)["masked_lm_logits"]))
    after = np.array(ops.softmax(larger(inputs)["masked_lm_logits"]))
    share = after[..., :V] / before
    np.testing.assert_allclose(share, share[..., :1] + 0 * share, rtol=1e-4)
    assert share.max() < 1
    assert share.min() >= V / (V + MORE)


def test_unbuilt_models_and_equal_sizes():
    larger = resize_vocabulary(BertModel(CONFIG), V + MORE)
    assert larger.embeddings.word_embeddings.shape == (V + MORE, H)
    model = small_bert.make(BertClassifier)
    copy = resize_vocabulary(model, V)
    assert copy is not model
    for name, value in arrays(model).items():
        np.testing.assert_array_equal(arrays(copy)[name], value)


@pytest.mark.parametrize(
    ("model_class", "vocab_size", "message"),
    [
        (BertModel, V - 1, f"at least {V}.* got {V - 1}"),
        (BertModel, 40.0, "a positive integer; got 40.0.$"),
        (keras.Sequential, V, "Sequential is not a model"),
    ],
)
def test_invalid_resizes_are_refused(model_class, vocab_size, message):
    model = model_class(CONFIG) if model_class is BertModel else model_class()
    with pytest.raises(InputError, match=message):
        resize_vocabulary(model, vocab_size)
