"""Tensor parallelism with JAX: the numbers of one device on a mesh of 2 x 2."""

import os
import pathlib
import subprocess
import sys

import keras
import pytest

from bert_tf.config import BertConfig
from bert_tf.modeling.encoder import BertModel
from bert_tf.modeling.heads import BertClassifier
from bert_tf.modeling.optimization import AdamWeightDecay
from bert_tf.modeling.variables import checkpoint_variables
from tests.backends import small_bert

# The sizes can be halved.
CONFIG = BertConfig.from_dict(
    small_bert.WITHOUT_DROPOUT.to_dict()
    | {"hidden_size": 12, "num_attention_heads": 6, "intermediate_size": 14}
)
BATCH, LENGTH = 4, 7
# Shapes of all weights that are halved, by the end of their names.
HALVES = {
    "embeddings/word_embeddings": (29, 6),
    **{f"self/{x}/kernel": (12, 6) for x in ("query", "key", "value")},
    **{f"self/{x}/bias": (6,) for x in ("query", "key", "value")},
    "attention/output/dense/kernel": (6, 12),
    "intermediate/dense/kernel": (12, 7),
    "intermediate/dense/bias": (7,),
    "layer_0/output/dense/kernel": (7, 12),
    "layer_1/output/dense/kernel": (7, 12),
    "query/lora_kernel_b": (2, 6),
    "value/lora_kernel_b": (2, 6),
    "attention/output/dense/lora_kernel_a": (6, 2),
}


def outputs_and_weights(lora: bool):
    """Returns outputs and weights after one training step, and the model."""
    model = BertClassifier(CONFIG, num_labels=3, dropout=0.0)
    small_bert.fill(model)
    if lora:
        model.enable_lora(2, ("query", "value", "attention_output"))
        small_bert.fill(model, "/lora_kernel_")
    model.compile(
        AdamWeightDecay(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    ids = small_bert.integers("ids", (BATCH, LENGTH), CONFIG.vocab_size)
    labels = small_bert.integers("labels", (BATCH,), 3)
    logits = model.predict({"input_ids": ids}, batch_size=BATCH, verbose=0)
    model.fit({"input_ids": ids}, labels, batch_size=BATCH, verbose=0)
    return {**logits, **small_bert.named_weights(model)}, model


def compare() -> None:
    for lora in (False, True):
        keras.distribution.set_distribution(None)
        expected, _ = outputs_and_weights(lora)
        mesh = keras.distribution.DeviceMesh((2, 2), ("batch", "model"))
        keras.distribution.set_distribution(
            keras.distribution.ModelParallel(
                layout_map=BertModel.get_layout_map(mesh),
                batch_dim_name="batch",
            )
        )
        found, model = outputs_and_weights(lora)
        small_bert.assert_close(found, expected, 2e-5)
        halves = set()
        slots = model.optimizer.slot_variables()
        for name, variable in checkpoint_variables(model).items():
            [end] = [x for x in HALVES if name.endswith(x)] or [None]
            for each in (variable, slots.get(f"{variable.path}/adam_m")):
                if each is not None:
                    shape = HALVES.get(end, tuple(variable.shape))
                    shards = each.value.addressable_shards
                    assert {x.data.shape for x in shards} == {shape}, name
            halves |= {end} - {None}
        assert len(halves) == len(HALVES) - 3 * (not lora)


@pytest.mark.slow
@pytest.mark.skipif(
    keras.config.backend() != "jax", reason="a mesh of devices needs JAX"
)
def test_a_mesh_gives_the_same_numbers():
    flags = "--xla_force_host_platform_device_count=4"
    subprocess.run(
        [sys.executable, "-m", "tests.backends.test_layout_map"],
        cwd=pathlib.Path(__file__).parents[2],
        env=os.environ | {"XLA_FLAGS": flags},
        check=True,
    )


if __name__ == "__main__":
    compare()
