"""Models with a head: training, dropout, choices, attentions, errors."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import ops

from bert_tf.errors import InputError
from bert_tf.modeling import heads, kernels
from bert_tf.modeling.encoder import BertModel
from bert_tf.modeling.heads import BertClassifier, BertMultipleChoice
from bert_tf.modeling.optimization import AdamWeightDecay
from tests.backends import small_bert
from tests.backends.gradients import gradients
from tests.backends.small_bert import CONFIG, WITHOUT_DROPOUT, B, C, S, V

MODELS = [m for m in small_bert.MODELS if m is not BertModel]
WITH_OWN_DROPOUT = [
    BertClassifier,
    heads.BertTokenClassifier,
    BertMultipleChoice,
]
SEED = np.array([5, 6], "int32")
ONE_BLOCK = dataclasses.replace(WITHOUT_DROPOUT, num_hidden_layers=1)


def test_every_position_is_scored_without_positions():
    model = small_bert.make(heads.BertPretrainer)
    inputs = small_bert.features(heads.BertPretrainer)
    some = model(inputs)["masked_lm_logits"]
    positions = inputs.pop("masked_lm_positions")
    every = np.array(model(inputs)["masked_lm_logits"])
    assert every.shape == (B, S, V)
    expected = every[np.arange(B)[:, None], positions]
    np.testing.assert_allclose(some, expected, atol=1e-5)
    shapes = model.compute_output_shape({"input_ids": (B, S)})
    assert shapes["masked_lm_logits"] == (B, S, V)


def test_choices_are_scored_one_by_one():
    """With positions and examples like those of other models."""
    model = small_bert.make(BertMultipleChoice)
    inputs = small_bert.features(BertMultipleChoice)
    numbers = np.broadcast_to(np.arange(S)[::-1], inputs["input_ids"].shape)
    inputs |= {"position_ids": numbers, "example_ids": numbers // 4}
    logits = np.array(model(inputs)["logits"])
    for choice in range(C):
        alone = {name: value[:, choice] for name, value in inputs.items()}
        pooled = model.bert(alone)["pooled_output"]
        expected = heads.score(model, pooled)[:, 0]
        np.testing.assert_allclose(logits[:, choice], expected, atol=1e-5)
    with pytest.raises(InputError, match="Leave out cls_positions"):
        model(inputs | {"cls_positions": numbers[..., :1]})


@pytest.mark.parametrize("model_class", small_bert.MODELS)
def test_mask_and_segments_have_defaults(model_class):
    model = small_bert.make(model_class)
    ids = small_bert.features(model_class)["input_ids"]
    inputs = {"input_ids": ids, "label_ids": np.zeros(B)}
    masked = {"input_mask": np.ones_like(ids), "segment_ids": 0 * ids}
    keras.tree.map_structure(
        np.testing.assert_array_equal, model(inputs), model(inputs | masked)
    )


@pytest.mark.parametrize("model_class", MODELS)
def test_attentions_beside_the_logits(model_class):
    """They sum to 1, have the announced shapes, and change no logit."""
    inputs = small_bert.features(model_class)
    model = small_bert.make(model_class, output_attentions=True)
    outputs = model(inputs)
    shapes = model.compute_output_shape({k: v.shape for k, v in inputs.items()})
    assert [x.shape for x in outputs["attentions"]] == shapes["attentions"]
    assert len(shapes["attentions"]) == CONFIG.num_hidden_layers
    for value in outputs.pop("attentions"):
        np.testing.assert_allclose(ops.sum(value, axis=-1), 1.0, atol=1e-5)
    plain = small_bert.outputs(small_bert.make(model_class))
    small_bert.assert_close(small_bert.named(outputs), plain)


@pytest.mark.parametrize("model_class", small_bert.MODELS)
def test_too_long_a_sequence(model_class):
    model = model_class(CONFIG, **small_bert.ARGUMENTS[model_class])
    axes = small_bert.features(model_class)["input_ids"].ndim
    shape = (*(2,) * (axes - 1), CONFIG.max_position_embeddings + 1)
    for use in (
        lambda: model({"input_ids": np.zeros(shape, int)}),
        lambda: model.compute_output_shape({"input_ids": shape}),
    ):
        with pytest.raises(InputError, match=r"at most 11 .*got 12"):
            use()


@pytest.mark.parametrize("model_class", [BertModel, BertClassifier])
def test_dropout_depends_on_the_seed(model_class):
    model = small_bert.make(model_class)
    inputs = small_bert.features(model_class)

    def result(seed, training=True):
        *_, last = model(inputs, training=training, seed=seed).values()
        return small_bert.numbers(keras.tree.flatten(last)[-1])

    np.testing.assert_array_equal(result(SEED), result(SEED))
    np.testing.assert_array_equal(result(SEED, False), result(None, False))
    for one, other in ((SEED, SEED + 1), (None, None)):
        assert not np.allclose(result(one), result(other))


@pytest.mark.parametrize("model_class", WITH_OWN_DROPOUT)
def test_dropout_of_the_head(model_class):
    inputs = small_bert.features(model_class)
    for rate, differs in ((0.5, True), (0.0, False)):
        model = small_bert.make(model_class, WITHOUT_DROPOUT, dropout=rate)
        expected = model(inputs)["logits"]
        for seed in (SEED, None):
            trained = model(inputs, training=True, seed=seed)["logits"]
            assert np.allclose(expected, trained) is not differs


@pytest.mark.parametrize("model_class", MODELS)
def test_every_trainable_variable_has_a_gradient(model_class):
    """A pooler whose output is not used is frozen."""

    def loss(outputs):
        return sum(
            ops.mean(ops.log_softmax(x)[..., 0]) for x in outputs.values()
        )

    model = small_bert.make(model_class, ONE_BLOCK)
    found = gradients(model, small_bert.features(model_class), loss)
    idle = {v.path for v in model.weights} - found.keys()
    is_pooled = model_class not in (
        heads.BertTokenClassifier,
        heads.BertSpanLabeler,
    )
    assert len(idle) == (0 if is_pooled else 2)
    assert all("/pooler/" in path for path in idle)
    for path, value in found.items():
        # A softmax ignores what is added to all keys, or to all choices.
        is_ignored = path.endswith("self/key/bias") or (
            model_class is BertMultipleChoice and "output_bias" in path
        )
        assert is_ignored or value.any(), path


@pytest.fixture
def trained(monkeypatch):
    """Returns a function that trains a classifier for four steps with `fit`."""
    monkeypatch.setattr(kernels, "LEAST_SIZE", 1)
    monkeypatch.setattr(kernels, "LEAST_SIZE_OF_STEPS", 1)

    def train(is_compiled, dtype="float32", jit_compile="auto", **options):
        model = small_bert.make(
            BertClassifier, ONE_BLOCK, dropout=0.0, dtype=dtype
        )
        # Without such an epsilon, Adam hardly depends on clipping.
        optimizer = AdamWeightDecay(
            0.5, epsilon=1.0, global_clipnorm=0.1, **options
        )
        if dtype == "mixed_float16":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, 4.0)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        how = {"jit_compile": jit_compile, "run_eagerly": not is_compiled}
        model.compile(optimizer, loss, **how)
        small_bert.train(model, 0, 4)
        return model

    return train


@pytest.mark.parametrize(
    ("dtype", "options", "tolerance"),
    [
        ("float32", {}, 1e-5),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("float32", {"gradient_accumulation_steps": 2}, 1e-5),
                ("float32", {"use_ema": True}, 1e-5),
                ("float64", {}, 1e-12),
                ("mixed_float16", {}, 2e-3),
            )
        ),
    ],
)
def test_fit_compiles_what_scripts_compile(trained, dtype, options, tolerance):
    """Operations between matrix products, and the update."""
    models = [trained(is_fused, dtype, **options) for is_fused in (True, False)]
    optimizers = [
        getattr(model.optimizer, "inner_optimizer", model.optimizer)
        for model in models
    ]
    assert ["_compiled_assign" in vars(x) for x in optimizers] == [True, False]
    fused, plain = (model.get_weights() for model in models)
    for ours, theirs in zip(fused, plain, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance)


@pytest.mark.slow
def test_fit_that_xla_compiles_as_a_whole(trained):
    model = trained(True, jit_compile=True)
    assert model.jit_compile
    assert "_compiled_assign" not in vars(model.optimizer)


@pytest.mark.slow
def test_compiled_updates_follow_the_hyperparameters(trained):
    model = trained(is_compiled=True)
    optimizer = model.optimizer
    optimizer.weight_decay_rate = optimizer.learning_rate = 0.0
    before = model.get_weights()
    model.compile(optimizer, model.loss)
    optimizer.learning_rate, optimizer.beta_1 = 0.5, 1.0
    for moment in optimizer.slot_variables().values():
        moment.assign(keras.ops.zeros_like(moment))
    small_bert.train(model, 0, 1)
    # The first moment stays 0, and nothing decays.
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.slow
def test_a_fitted_model_is_exported_without_its_optimizer(trained, tmp_path):
    model = trained(is_compiled=True)
    model.enable_lora(2)
    small_bert.train(model, 0, 1)
    model.merge_lora()
    plain = small_bert.make(BertClassifier, WITHOUT_DROPOUT, dropout=0.0)
    sizes = []
    for name, each in (("fitted", model), ("plain", plain)):
        each.export(tmp_path / name, verbose=False)
        variables = tmp_path / name / "variables"
        [data] = variables.glob("variables.data-*")
        sizes.append(data.stat().st_size)
    assert sizes[0] < 1.2 * sizes[1]


@pytest.mark.parametrize(
    "model_class", [BertClassifier, heads.BertTokenClassifier]
)
def test_number_of_labels(model_class):
    model = model_class(CONFIG, np.max([0, 2]) + 1)
    assert type(model.get_config()["num_labels"]) is int
    assert model.num_labels == 3
    for wrong in (0, True, "2"):
        message = rf"^num_labels must be a positive integer; got {wrong!r}.$"
        with pytest.raises(InputError, match=message):
            model_class(CONFIG, wrong)
