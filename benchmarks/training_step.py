"""Tokens per second of the pre-training step, as a share of the peak.

    python benchmarks/training_step.py --hidden_size=384 --num_hidden_layers=6

runs the step that run_pretraining.py runs (forward, backward, clipping,
update) on random records, alternating with large matrix products, and prints
the medians and their ratio:

    hidden 384 x 6, batch 16, length 128, float32: 2,345 tokens/s,
    123 of 170 GFLOP/s (72 % of the matmul peak)

Only FLOPs of the model's own products are counted, three times the forward
pass; dropout, softmax, layer norm and the update are time without FLOPs.
"""

import statistics
import time

import numpy as np
import tensorflow as tf
from absl import app, flags

import bert_tf.quiet_tensorflow  # noqa: F401
from bert_tf import flags as bert_flags
from bert_tf.config import BertConfig
from bert_tf.tasks.pretraining import PretrainingTask
from bert_tf.training.distribution import should_compile
from bert_tf.training.optimization import AdamWeightDecay
from bert_tf.training.step import TrainingStep

FLAGS = flags.FLAGS

flags.DEFINE_integer("hidden_size", 384, "Width of the model; heads are 64.")
flags.DEFINE_integer("num_hidden_layers", 6, "Blocks of the model.")
flags.DEFINE_integer("vocab_size", 30522, "Pieces in the vocabulary.")
flags.DEFINE_integer("batch_size", 16, "Examples of a step.")
flags.DEFINE_integer("max_seq_length", 128, "Positions of an example.")
flags.DEFINE_integer("max_predictions_per_seq", 20, "Masked positions.")
flags.DEFINE_integer("rounds", 5, "Measurements; their median is printed.")
bert_flags.define_device_flags()


def main(argv) -> None:
    del argv
    strategy = bert_flags.connect()
    config = model_config()
    run_step = make_step(config, strategy, random_batch(config))
    peak, seconds = measure(run_step)
    rate = flops(config) / seconds
    tokens = FLAGS.batch_size * FLAGS.max_seq_length
    print(
        f"hidden {config.hidden_size} x {config.num_hidden_layers}, "
        f"batch {FLAGS.batch_size}, length {FLAGS.max_seq_length}, "
        f"{FLAGS.mixed_precision}: {tokens / seconds:,.0f} tokens/s, "
        f"{rate / 1e9:,.0f} of {peak / 1e9:,.0f} GFLOP/s "
        f"({rate / peak:.0%} of the matmul peak)"
    )


def model_config() -> BertConfig:
    """The shape that the flags ask for."""
    return BertConfig(
        vocab_size=FLAGS.vocab_size,
        hidden_size=FLAGS.hidden_size,
        num_hidden_layers=FLAGS.num_hidden_layers,
        num_attention_heads=FLAGS.hidden_size // 64,
        intermediate_size=4 * FLAGS.hidden_size,
        type_vocab_size=2,
    )


def make_step(config: BertConfig, strategy, features):
    """A function that runs one step on a batch and waits for it."""
    task = PretrainingTask(
        config, FLAGS.max_seq_length, FLAGS.max_predictions_per_seq
    )
    with strategy.scope():
        model = task.build_model()
        optimizer = AdamWeightDecay(1e-4)
        optimizer.build(model.trainable_variables)
    step = TrainingStep(
        task,
        model,
        optimizer,
        strategy,
        jit_compile=should_compile(strategy, bert_flags.jit_compile()),
        jit_compile_update=bert_flags.jit_compile() is not False,
    )
    data = iter(tf.data.Dataset.from_tensors(features).repeat())
    one = tf.constant(1)
    return lambda: step.run(data, one)["loss"].numpy()


def random_batch(config: BertConfig) -> dict[str, np.ndarray]:
    """Full-length examples of random ids."""
    random = np.random.default_rng(0)
    length = (FLAGS.batch_size, FLAGS.max_seq_length)
    masked = (FLAGS.batch_size, FLAGS.max_predictions_per_seq)
    return {
        "input_ids": random.integers(config.vocab_size, size=length, dtype="i"),
        "input_mask": np.ones(length, "int32"),
        "segment_ids": random.integers(2, size=length, dtype="i"),
        "masked_lm_positions": random.integers(
            FLAGS.max_seq_length, size=masked, dtype="i"
        ),
        "masked_lm_ids": random.integers(
            config.vocab_size, size=masked, dtype="i"
        ),
        "masked_lm_weights": np.ones(masked, "float32"),
        "next_sentence_labels": np.ones((FLAGS.batch_size, 1), "int32"),
    }


def flops(config: BertConfig) -> float:
    """Multiplications and additions of one step's matrix products."""
    hidden, length = config.hidden_size, FLAGS.max_seq_length
    per_token = config.num_hidden_layers * (
        8 * hidden**2  # query, key, value, output
        + 4 * hidden * config.intermediate_size
        + 4 * length * hidden  # scores and context
    )
    per_example = (
        length * per_token
        + FLAGS.max_predictions_per_seq
        * (2 * hidden**2 + 2 * hidden * config.vocab_size)
        + 2 * hidden**2  # pooler
    )
    return 3.0 * FLAGS.batch_size * per_example


def measure(run_step) -> tuple[float, float]:
    """Peak in FLOP/s and seconds of a step, medians of alternating rounds."""
    dtype = {"float32": tf.float32, "bfloat16": tf.bfloat16}
    size = 2048
    matrix = tf.cast(
        tf.random.normal([size, size]), dtype[FLAGS.mixed_precision]
    )
    run_step()
    peaks, seconds = [], []
    for _ in range(FLAGS.rounds):
        seconds.append(median_seconds(run_step, 3))
        product = median_seconds(lambda: tf.matmul(matrix, matrix).numpy(), 5)
        peaks.append(2.0 * size**3 / product)
    return statistics.median(peaks), statistics.median(seconds)


def median_seconds(function, times: int) -> float:
    """The median time of some calls."""
    measured = []
    for _ in range(times):
        started = time.perf_counter()
        function()
        measured.append(time.perf_counter() - started)
    return statistics.median(measured)


if __name__ == "__main__":
    app.run(main)
