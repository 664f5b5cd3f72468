"""Arrays as tf.data datasets for Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.data import pipeline
from bert_tf.modeling.encoder import BertModel
from bert_tf.modeling.heads import BertClassifier
from tests.backends import small_bert

N, BATCH_SIZE = 10, 4
X = np.arange(2.0 * N).reshape(N, 2)
Y = np.arange(N) % 3
WEIGHTS = np.linspace(0, 1, N)


def linear_model() -> keras.Model:
    layer = keras.layers.Dense(3, kernel_initializer="ones")
    model = keras.Sequential([keras.Input((2,)), layer])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss)
    return model


def rows_of(dataset) -> list[list[float]]:
    return [batch[:, 0].numpy().tolist() for batch, *_ in dataset]


def test_keras_computes_the_same():
    given = {
        "x": X,
        "y": Y,
        "sample_weight": WEIGHTS,
        "batch_size": BATCH_SIZE,
        "shuffle": False,
        "validation_data": (X[:3], Y[:3]),
        "verbose": 0,
    }
    models = [linear_model(), linear_model()]
    made = pipeline.with_datasets(given, shuffle=True)
    histories = [
        model.fit(epochs=2, **arguments).history
        for model, arguments in zip(models, (given, made), strict=True)
    ]
    assert set(histories[0]) == {"loss", "val_loss"}
    for name, values in histories[0].items():
        np.testing.assert_allclose(histories[1][name], values, rtol=1e-6)
    for ours, theirs in zip(*(m.get_weights() for m in models), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_an_epoch_has_every_row_once_in_a_new_order():
    given = {"x": X, "batch_size": BATCH_SIZE}
    dataset = pipeline.with_datasets(given, shuffle=True)["x"]
    orders = [rows_of(dataset) for _ in range(2)]
    assert orders[0] != orders[1]
    for order in orders:
        assert [len(batch) for batch in order] == [4, 4, 2]
        assert sorted(np.concatenate(order)) == X[:, 0].tolist()
    plain = pipeline.with_datasets({"x": X}, shuffle=False)["x"]
    assert rows_of(plain) == [X[:, 0].tolist()]


def test_floats_get_the_default_dtype_of_keras():
    features = {"a": X, "b": Y.astype(np.int8)}
    [(batch,)] = pipeline.with_datasets({"x": features}, shuffle=False)["x"]
    assert batch["a"].dtype == keras.config.floatx()
    assert batch["b"].dtype == "int8"


@pytest.mark.parametrize(
    "given",
    [
        {"x": X.tolist(), "y": Y},
        {"x": [X, X], "y": Y},
        {"x": np.array(["a", "b"]), "y": Y[:2]},
        {"x": X, "y": Y[:3]},
        {"x": X, "y": Y, "class_weight": {0: 2.0}},
        {"x": X, "y": Y, "steps_per_epoch": 2},
        {"x": X, "y": Y, "validation_data": (X.tolist(), Y)},
        {"x": iter([(X, Y)])},
    ],
)
def test_keras_reads_the_rest(given):
    result = pipeline.with_datasets(given, shuffle=True)
    assert result.keys() == given.keys()
    assert all(result[name] is given[name] for name in given)


def test_the_arrays_of_models_have_no_tuning_thread(monkeypatch, eagerly):
    """It sleeps for up to a minute, for which `fit` would wait at its end."""
    datasets = []
    get_iterator = tf.data.Dataset.__iter__

    def observed(dataset):
        datasets.append(dataset)
        return get_iterator(dataset)

    monkeypatch.setattr(tf.data.Dataset, "__iter__", observed)
    inputs, labels = small_bert.features(), np.zeros(small_bert.B, "int32")
    model = small_bert.make(BertClassifier)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    model.fit(inputs, labels, validation_data=(inputs, labels), verbose=0)
    model.predict(inputs, verbose=0)
    small_bert.make(BertModel).predict(inputs, verbose=0)
    # Keras also reads the first batch to build a model.
    assert len({id(dataset) for dataset in datasets}) == 4
    assert not any(dataset.options().autotune.enabled for dataset in datasets)
