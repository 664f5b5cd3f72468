"""Pre-training with Keras, for benchmarks/training_step.py.

The sides are the step of run_pretraining.py; bert_tf on Keras's JAX backend,
which needs jax_cuda.txt and no TensorFlow; and KerasHub's encoder and head with
a next-sentence classifier, which need keras_hub.txt. The last two train as
their users do: JAX by `fit`, KerasHub by `train_on_batch`.
"""

import importlib.util
import itertools

import keras
import side

from bert_tf import AdamWeightDecay, BertConfig, BertPretrainer

PACKAGES = ("tensorflow", "keras", "keras_hub", "jax", "jaxlib")


def make(setup):
    if setup["precision"] == "bfloat16":
        keras.config.set_dtype_policy("mixed_bfloat16")
    batch = side.batch_of(setup)
    times = setup["steps"]
    if setup["side"] == "keras_hub":
        step = keras_hub(setup, batch)
    elif keras.backend.backend() == "jax":
        step, times = on_jax(setup, batch), 1
    else:
        step = make_step(BertConfig(**setup["config"]), batch)
    matrix = keras.ops.cast(
        keras.random.normal([setup["matrix_size"]] * 2), setup["precision"]
    )

    def steps():
        for _ in range(times):
            loss = step()
        return loss

    def products():
        for _ in range(setup["products"]):
            product = keras.ops.matmul(matrix, matrix)
        keras.ops.convert_to_numpy(product[:1])

    return steps, products


def make_step(config, features):
    """Returns the step of run_pretraining.py, which returns the loss."""
    import tensorflow as tf

    from bert_tf.kinds.pretraining.task import PretrainingTask
    from bert_tf.training.step import TrainingStep

    length = features["input_ids"].shape[1]
    masked = features["masked_lm_positions"].shape[1]
    task = PretrainingTask(config, length, masked)
    model = task.build_model()
    optimizer = AdamWeightDecay(1e-4)
    optimizer.build(model.trainable_variables)
    strategy = tf.distribute.get_strategy()
    step = TrainingStep(
        task, model, optimizer, strategy, jit_compile_passes=True
    )
    data = iter(tf.data.Dataset.from_tensors(dict(features)).repeat())
    return lambda: step.run(data, tf.constant(1))["loss"].numpy()


def on_jax(setup, batch):
    """Returns a function that fits our model and returns the mean loss.

    `train_on_batch` would wait for each step.
    """
    labels = {
        "masked_lm_logits": batch["masked_lm_ids"],
        "next_sentence_logits": batch["next_sentence_labels"],
    }
    model = BertPretrainer(BertConfig(**setup["config"]))
    compile_(model, AdamWeightDecay(1e-4, global_clipnorm=1.0), labels)

    def steps():
        data = ((batch, labels) for _ in itertools.count())
        history = model.fit(
            data, steps_per_epoch=setup["steps"], shuffle=False, verbose=0
        )
        return history.history["loss"][-1]

    return steps


def keras_hub(setup, batch):
    """Returns the same for KerasHub's model."""
    import keras_hub

    config = setup["config"]
    encoder = keras_hub.models.BertBackbone(
        vocabulary_size=config["vocab_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        hidden_dim=config["hidden_size"],
        intermediate_dim=config["intermediate_size"],
        max_sequence_length=config["max_position_embeddings"],
    )
    positions = keras.Input([setup["max_predictions_per_seq"]], dtype="int32")
    outputs = encoder.output
    words = keras_hub.layers.MaskedLMHead(
        token_embedding=encoder.token_embedding,
        intermediate_activation="gelu",
    )(outputs["sequence_output"], mask_positions=positions)
    follows = keras.layers.Dense(2)(outputs["pooled_output"])
    model = keras.Model([encoder.input, positions], [words, follows])
    optimizer = keras.optimizers.AdamW(
        1e-4, weight_decay=0.01, epsilon=1e-6, global_clipnorm=1.0
    )
    features = {
        "token_ids": batch["input_ids"],
        "padding_mask": batch["input_mask"],
        "segment_ids": batch["segment_ids"],
    }
    inputs = [features, batch["masked_lm_positions"]]
    labels = [batch["masked_lm_ids"], batch["next_sentence_labels"]]
    compile_(model, optimizer, labels)
    return lambda: model.train_on_batch(inputs, labels, return_dict=True)[
        "loss"
    ]


def compile_(model, optimizer, labels):
    """Compiles a model with the cross-entropy of each of the labels."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, keras.tree.map_structure(lambda _: loss, labels))


if __name__ == "__main__":
    side.serve_training(make, filter(importlib.util.find_spec, PACKAGES))
