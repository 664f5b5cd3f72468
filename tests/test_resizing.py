"""A larger vocabulary: what is copied, what is new, what stays."""

import keras
import numpy as np
import pytest
from keras import ops

import bert_tf
from bert_tf.errors import InputError
from bert_tf.modeling import checkpoint_variables, resize_vocabulary

V, MORE, H = 37, 5, 12
CONFIG = bert_tf.BertConfig(
    vocab_size=V,
    hidden_size=H,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=17,
    max_position_embeddings=13,
    type_vocab_size=3,
)
TABLE = "bert/embeddings/word_embeddings"
BIAS = "cls/predictions/output_bias"
MODELS = {
    bert_tf.BertModel: {"output_hidden_states": True},
    bert_tf.BertPretrainer: {},
    bert_tf.BertClassifier: {"num_labels": 3, "dropout": 0.3},
    bert_tf.BertTokenClassifier: {"num_labels": 3},
    bert_tf.BertMultipleChoice: {"dropout": 0.2},
    bert_tf.BertSpanLabeler: {},
}


def make(model_class, **arguments) -> keras.Model:
    """A model in which no two weights are alike, biases neither."""
    model = model_class(CONFIG, **(MODELS[model_class] | arguments))
    model.build()
    random = np.random.default_rng(4)
    for weight in model.weights:
        weight.assign(random.normal(0, 0.3, weight.shape))
    return model


def arrays(model) -> dict[str, np.ndarray]:
    return {
        name: np.array(ops.convert_to_numpy(variable))
        for name, variable in checkpoint_variables(model).items()
    }


@pytest.mark.parametrize("model_class", MODELS)
def test_only_the_vocabulary_grows(model_class):
    model = make(model_class)
    before = arrays(model)
    larger = resize_vocabulary(model, V + MORE)
    assert type(larger) is model_class
    assert larger.config.vocab_size == V + MORE
    expected = model.get_config() | {"config": larger.config.to_dict()}
    assert larger.get_config() == expected
    after = arrays(larger)
    assert after.keys() == before.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(after[name][: len(value)], value)
        grows = name in (TABLE, BIAS)
        assert len(after[name]) - len(value) == (MORE if grows else 0), name


@pytest.mark.parametrize("name", [TABLE, BIAS])
def test_new_rows_are_the_mean_of_the_old(name):
    model = make(bert_tf.BertPretrainer)
    old = arrays(model)[name]
    new = arrays(resize_vocabulary(model, V + MORE))[name][V:]
    expected = np.repeat(old.mean(0, keepdims=True), MORE, axis=0)
    np.testing.assert_allclose(new, expected, atol=1e-6)


def test_the_old_model_is_untouched():
    model = make(bert_tf.BertPretrainer)
    before, config = arrays(model), model.get_config()
    larger = resize_vocabulary(model, V + MORE)
    for weight in larger.weights:
        weight.assign(ops.zeros_like(weight))
    assert model.get_config() == config
    for name, value in arrays(model).items():
        np.testing.assert_array_equal(value, before[name])


def test_old_words_keep_their_probability():
    """Each keeps V / (V + k) of it or more, and their odds do not change."""
    model = make(bert_tf.BertPretrainer)
    larger = resize_vocabulary(model, V + MORE)
    inputs = {"input_ids": np.random.default_rng(0).integers(0, V, (7, 11))}
    before = np.array(ops.softmax(model(inputs)["masked_lm_logits"]))
    after = np.array(ops.softmax(larger(inputs)["masked_lm_logits"]))
    share = after[..., :V] / before
    np.testing.assert_allclose(share, share[..., :1] + 0 * share, rtol=1e-4)
    assert share.max() < 1
    assert share.min() >= V / (V + MORE)


def test_old_texts_are_encoded_alike():
    model = make(bert_tf.BertModel)
    larger = resize_vocabulary(model, V + MORE)
    inputs = {"input_ids": np.arange(22).reshape(2, 11)}
    np.testing.assert_array_equal(
        larger(inputs)["pooled_output"], model(inputs)["pooled_output"]
    )
    new_word = {"input_ids": np.full((1, 3), V + MORE - 1)}
    assert np.isfinite(larger(new_word)["pooled_output"]).all()


def test_what_is_frozen_stays_so():
    model = make(bert_tf.BertClassifier)
    model.bert.embeddings.trainable = False
    larger = resize_vocabulary(model, V + MORE)
    names = [[v.path for v in m.trainable_variables] for m in (model, larger)]
    assert names[0] == names[1]
    assert not any("embeddings" in name for name in names[1])


@pytest.mark.parametrize("policy", ["bfloat16", "mixed_float16"])
def test_the_policy_is_kept(policy):
    model = make(bert_tf.BertPretrainer, dtype=policy)
    larger = resize_vocabulary(model, V + MORE)
    assert larger.dtype_policy.name == policy
    dtypes = [[v.dtype for v in m.weights] for m in (model, larger)]
    assert dtypes[0] == dtypes[1]


def test_a_model_that_was_never_called_can_grow():
    larger = resize_vocabulary(bert_tf.BertModel(CONFIG), V + MORE)
    assert larger.embeddings.word_embeddings.shape == (V + MORE, H)


def test_the_same_size_gives_a_copy():
    model = make(bert_tf.BertSpanLabeler)
    copy = resize_vocabulary(model, V)
    assert copy is not model
    for name, value in arrays(model).items():
        np.testing.assert_array_equal(arrays(copy)[name], value)


@pytest.mark.parametrize(
    ("vocab_size", "message"),
    [
        (V - 1, "at least 37.* got 36"),
        (0, "vocab_size must be a positive integer; got 0.$"),
        (40.0, "vocab_size must be a positive integer; got 40.0.$"),
    ],
)
def test_a_smaller_vocabulary_is_refused(vocab_size, message):
    with pytest.raises(InputError, match=message):
        resize_vocabulary(bert_tf.BertModel(CONFIG), vocab_size)


def test_a_model_of_another_kind_is_refused():
    with pytest.raises(InputError, match="Sequential is not a model"):
        resize_vocabulary(keras.Sequential([keras.layers.Dense(2)]), V)
