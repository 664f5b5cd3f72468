"""Keras's own tests of a layer, and KerasHub's of a model, on our classes.

Checks that cannot apply, and why:

- PretrainingHeads and SpanHead have no `call`: they are scopes, whose inner
  layers the models call. `run_layer_test` cannot make BertTokenizer's strings.
  Of these, only serialization is tested.
- `run_layer_test` passes all inputs of a training step as one argument, so it
  cannot train layers with several inputs. It trains the models around them.
- `run_layer_test` passes a dict of inputs as keyword arguments. Our models take
  it as one argument: `by_keyword` translates.
- `run_backbone_test` reads `token_embedding`, which only `keras_hub.Backbone`
  has, and expects the name `bert_model`, but the default is `bert`, the scope
  of the original: both are given here. Its precision check rejects float32
  logits, which all heads return. Its quantization check sets the weights of a
  model that is not built: a Backbone is functional. test_saved_models.py tests
  int8 models and maps of dtype policies instead.
"""

import dataclasses
import re

import keras
import pytest
from keras import ops
from keras.src.testing import TestCase

from bert_tf.modeling import dense, heads, optimization, transformer
from bert_tf.modeling.encoder import BertModel
from tests.backends import small_bert
from tests.backends.small_bert import CONFIG, B, C, H, N, P, S, V

# `run_layer_test` draws segment ids from 0 to 2.
CONFIGURED = {"config": dataclasses.replace(CONFIG, type_vocab_size=3)}
X = (B, S, H)
BLOCK_INPUTS = {"x": X, "attention_bias": (B, 1, 1, S)}
BLOCK_OUTPUTS = (X, (B, N, S, S))
MODELS = small_bert.ARGUMENTS | {
    BertModel: {"name": "bert_model"},
}
SLOW = [] if keras.config.backend() == "tensorflow" else [pytest.mark.slow]
EACH_MODEL = pytest.mark.parametrize(
    "model_class",
    [
        pytest.param(m, marks=SLOW if m is BertModel else pytest.mark.slow)
        for m in MODELS
    ],
)
OPTIONS = {
    transformer.Dropout: {"rate": 0.3},
    dense.Dense: {"units": C},
    transformer.Encoder: {**CONFIGURED, "output_attentions": True},
}
# Layer, the shape of the input or shapes by name, the shapes of the outputs.
LAYERS = [
    (transformer.Dropout, X, X),
    (dense.Dense, X, (B, S, C)),
    (transformer.Embeddings, {"input_ids": X[:2], "segment_ids": X[:2]}, X),
    (transformer.SelfAttention, BLOCK_INPUTS, BLOCK_OUTPUTS),
    (transformer.ResidualOutput, {"x": (B, S, 17), "residual": X}, X),
    (transformer.Attention, BLOCK_INPUTS, BLOCK_OUTPUTS),
    (transformer.Intermediate, X, (B, S, 17)),
    (transformer.TransformerBlock, BLOCK_INPUTS, BLOCK_OUTPUTS),
    (transformer.Encoder, BLOCK_INPUTS, ([X] * 2, [(B, N, S, S)] * 2)),
    (transformer.Pooler, X, (B, H)),
    (transformer.Pooler, {"sequence_output": X, "positions": X[:2]}, X),
    (heads.Transform, X, X),
    (
        heads.MaskedLanguageModel,
        {
            "sequence_output": X,
            "masked_lm_positions": (B, P),
            "word_embeddings": (V, H),
        },
        (B, P, V),
    ),
    (heads.NextSentence, (B, H), (B, 2)),
    (heads.Span, X, (B, S, 2)),
]


@pytest.mark.filterwarnings("ignore:.*does not have any trainable weights")
@pytest.mark.filterwarnings("ignore:.*shuffle=True")
@pytest.mark.parametrize(("layer", "inputs", "outputs"), LAYERS)
def test_layers(layer, inputs, outputs):
    dtypes, has_several = None, isinstance(inputs, dict)
    if has_several:
        inputs = {f"{name}_shape": shape for name, shape in inputs.items()}
        integers = {k for k in inputs if re.search("(ids|positions)_", k)}
        dtypes = {k: "int32" if k in integers else "float32" for k in inputs}
    with small_bert.initial_zeros():
        TestCase().run_layer_test(
            layer,
            OPTIONS.get(layer, CONFIGURED),
            input_shape=inputs,
            input_dtype=dtypes,
            expected_output_shape=outputs,
            run_training_check=not has_several,
        )


def by_keyword(model_class):
    """A subclass that takes the names of features as keywords everywhere."""

    class Model(model_class):
        def build(self, input_shape=None, **shapes):
            super().build(input_shape or shapes)

        def compute_output_spec(self, inputs=None, **features):
            return super().compute_output_spec(inputs or features)

    Model.__name__ = f"{model_class.__name__}ByKeyword"
    return Model


@pytest.mark.filterwarnings("ignore:.*shuffle=True")
@EACH_MODEL
def test_models(model_class):
    subclass = by_keyword(model_class)
    with small_bert.initial_zeros():
        TestCase().run_layer_test(
            subclass,
            {**CONFIGURED, **MODELS[model_class]},
            input_data=small_bert.features(model_class),
            custom_objects={subclass.__name__: subclass},
        )


@pytest.mark.parametrize(
    ("public_class", "arguments"),
    [
        (heads.PretrainingHeads, CONFIGURED),
        (heads.SpanHead, CONFIGURED),
        (optimization.AdamWeightDecay, {"learning_rate": 0.1}),
        (optimization.Lamb, {"learning_rate": 0.1}),
        (optimization.WarmupLinearDecay, {"peak": 0.1, "num_train_steps": 7}),
    ],
)
def test_serialization(public_class, arguments):
    TestCase().run_class_serialization_test(public_class(**arguments))


def test_serialization_of_the_tokenizer():
    pytest.importorskip("tensorflow_text")
    from bert_tf.tokenization.graph import BertTokenizer

    layer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    TestCase().run_class_serialization_test(layer)


@pytest.fixture
def keras_hub_case(tmp_path):
    """KerasHub's test case: `pip install 'keras-hub[grain]==0.32.*'`."""
    module = pytest.importorskip("keras_hub.src.tests.test_case")
    case = module.TestCase()
    case.get_temp_dir = lambda: str(tmp_path)
    return case


def hub_arguments(model_class):
    """The model's class, arguments and inputs, for KerasHub's test case."""
    inputs = small_bert.features(model_class)
    if model_class is heads.BertPretrainer:
        # Variable lengths: KerasHub cuts all inputs to 2, 3 and 4 columns.
        inputs["masked_lm_positions"] %= 2
    arguments = {**CONFIGURED, **MODELS[model_class]}
    return model_class, arguments, keras.tree.map_structure(ops.array, inputs)


@EACH_MODEL
def test_saving_by_keras_hub(model_class, keras_hub_case):
    keras_hub_case.run_model_saving_test(*hub_arguments(model_class))


@EACH_MODEL
def test_backbones_by_keras_hub(model_class, keras_hub_case, monkeypatch):
    def token_embedding(model):
        table = getattr(model, "bert", model).embeddings.word_embeddings
        return lambda ids: ops.take(table, ids, axis=0)

    monkeypatch.setattr(
        model_class, "token_embedding", property(token_embedding), raising=False
    )
    _, arguments, tensors = hub_arguments(model_class)
    shapes = model_class(**arguments).compute_output_shape(
        {name: tuple(x.shape) for name, x in tensors.items()}
    )
    keras_hub_case.run_backbone_test(
        model_class,
        arguments,
        tensors,
        shapes,
        run_mixed_precision_check=model_class is BertModel,
        run_quantization_check=False,
    )
