"""The model, its losses and its training, against other programs' numbers.

The forward pass is compared with google-research/bert's own code; gradients and
steps of training with Hugging Face's PyTorch model in float64, with the same
weights; see tests/golden/README.md.
"""

import dataclasses

import keras
import numpy as np
import pytest
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.data.records import pretraining_schema
from bert_tf.kinds.pretraining.task import PretrainingTask
from bert_tf.modeling import heads
from bert_tf.modeling.encoder import BertModel
from bert_tf.modeling.optimization import AdamWeightDecay, WarmupLinearDecay
from bert_tf.modeling.variables import checkpoint_variables
from tests.backends import small_bert
from tests.backends.gradients import gradients, pretraining_losses

# The training in oracle_training.npz.
STEPS, WARMUP, PEAK = 20, 5, 0.004
# The tolerance of one pass in float32. An epsilon of 1e-6 instead of 1e-12
# would exceed it.
TOLERANCE = 5e-6
TASK_INPUTS = tuple(feature.name for feature in pretraining_schema(1, 1))


@pytest.fixture(scope="module")
def oracle(google_oracle):
    """Config without dropout, weights, the original's arrays."""
    config, arrays = google_oracle
    config = dataclasses.replace(
        config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    return config, part_of(arrays, "weights"), part_of(arrays, "expected")


@pytest.fixture(scope="module")
def torch_numbers(golden):
    """Hugging Face's gradients, steps, and weights after them."""
    arrays = np.load(golden / "oracle_training.npz")
    return {
        part: part_of(arrays, part) for part in ("gradients", "steps", "after")
    }


def part_of(arrays, prefix):
    """The arrays PREFIX/NAME of a file, by NAME."""
    return {
        key.removeprefix(f"{prefix}/"): arrays[key]
        for key in arrays.files
        if key.startswith(f"{prefix}/")
    }


def filled(model, weights):
    with small_bert.initial_zeros():
        model.build()
    for name, variable in checkpoint_variables(model).items():
        variable.assign(weights[name])
    return model


def gap(ours, theirs):
    return np.abs(np.reshape(ours, np.shape(theirs)) - theirs).max()


def outputs_of(config: BertConfig, weights, expected) -> dict[str, np.ndarray]:
    """The arrays of the original's expected.npz, computed by our models."""
    batch = {n: ops.convert_to_tensor(expected[n]) for n in TASK_INPUTS}
    encoder = filled(BertModel(config, output_hidden_states=True), weights)
    encoded = small_bert.numbers(small_bert.call(encoder, batch))
    embedded, *layers = encoded["hidden_states"]
    task = PretrainingTask(config, *batch["masked_lm_positions"].shape)
    logits = small_bert.call(filled(task.build_model(), weights), batch)
    predictions = task.predictions(batch, logits)
    losses = task.score(
        {k: ops.convert_to_numpy(v) for k, v in predictions.items()}
    )
    return {
        "embedding_output": embedded,
        "all_encoder_layers": np.stack(layers),
        "sequence_output": encoded["sequence_output"],
        "pooled_output": encoded["pooled_output"],
        **{
            f"{head}_log_probs": small_bert.numbers(
                ops.log_softmax(logits[f"{head}_logits"])
            )
            for head in ("masked_lm", "next_sentence")
        },
        **{name: losses[name] for name in task.loss_names},
    }


def test_every_array_of_the_original(oracle, fidelity):
    config, weights, expected = oracle
    ours = outputs_of(config, weights, expected)
    assert sorted([*ours, *TASK_INPUTS]) == sorted(expected)
    for name, values in ours.items():
        fidelity(
            f"model: Google's random model: {name}, largest difference",
            gap(values, expected[name]),
            TOLERANCE,
        )


HEADS = {
    "classifier": lambda config: heads.BertClassifier(config, 3),
    "token": lambda config: heads.BertTokenClassifier(config, 5),
    "choice": heads.BertMultipleChoice,
    "span": heads.BertSpanLabeler,
}


@pytest.mark.parametrize("head", HEADS)
def test_heads(oracle, golden, fidelity, head):
    """Random ones on the same encoder, against Hugging Face's in float64."""
    config, weights, expected = oracle
    arrays = part_of(np.load(golden / "heads.npz"), head)
    scope = "cls/squad/" if head == "span" else ""
    own = {
        f"{scope}output_weights": arrays.pop("weights"),
        f"{scope}output_bias": arrays.pop("bias"),
    }
    model = filled(HEADS[head](config), weights | own)
    batch = {name: expected[name] for name in TASK_INPUTS[:3]}
    if head == "choice":
        batch = {name: x.reshape(2, 2, -1) for name, x in batch.items()}
    outputs = small_bert.numbers(small_bert.call(model, batch))
    assert outputs.keys() == arrays.keys()
    fidelity(
        f"model: {head} head on Google's random model, against Hugging "
        "Face's: logits, largest difference",
        max(gap(outputs[name], arrays[name]) for name in arrays),
        TOLERANCE,
    )


def encoded(model, batch):
    return small_bert.numbers(small_bert.call(model, batch))["sequence_output"]


def test_padding_changes_nothing(oracle, fidelity):
    config, weights, expected = oracle
    batch = {name: expected[name] for name in TASK_INPUTS[:3]}
    model = filled(BertModel(config), weights)
    wide = {name: np.pad(x, ((0, 0), (0, 40))) for name, x in batch.items()}
    padded = encoded(model, wide)
    gaps = []
    for row, length in enumerate(batch["input_mask"].sum(1)):
        alone = {n: x[row : row + 1, :length] for n, x in batch.items()}
        bare = encoded(model, alone)[0]
        gaps.append(gap(padded[row, :length], bare))
    fidelity(
        "model: rows of 3 to 24 pieces alone, against the same padded to 64 "
        "in a batch: sequence_output, largest difference",
        max(gaps),
        TOLERANCE,
    )


def test_from_the_originals_files(shared_data, oracle, fidelity):
    """The same with the files that Google's code wrote."""
    checkpoints = pytest.importorskip("bert_tf.checkpoints.tf1")
    folder = shared_data / "google_oracle"
    reader = checkpoints.Reader(checkpoints.find(str(folder)))
    config = BertConfig.from_json_file(folder / "bert_config.json")
    expected = np.load(folder / "expected.npz")
    differing = [
        name
        for name, values in oracle[1].items()
        if not np.array_equal(reader[name], values)
    ]
    assert sorted(reader.shapes) == sorted(oracle[1])
    fidelity(
        "checkpoints: Google's random model, its TF1 files against the copy "
        "in tests/golden: tensors that differ",
        len(differing),
        0,
    )
    ours = outputs_of(config, reader, expected)
    fidelity(
        "checkpoints: Google's random model read from its TF1 files: largest "
        "difference over every array of expected.npz",
        max(gap(values, expected[name]) for name, values in ours.items()),
        TOLERANCE,
    )


def test_every_gradient(oracle, torch_numbers, fidelity):
    config, weights, expected = oracle
    batch = {name: expected[name] for name in TASK_INPUTS}
    task = PretrainingTask(config, *batch["masked_lm_positions"].shape)
    model = filled(task.build_model(), weights)
    found = gradients(
        model, batch, lambda x: sum(pretraining_losses(task, batch, x).values())
    )
    ours = {n: found[v.path] for n, v in checkpoint_variables(model).items()}
    theirs = torch_numbers["gradients"]
    assert sorted(ours) == sorted(theirs)
    size = max(np.abs(gradient).max() for gradient in theirs.values())
    fidelity(
        f"model: gradients of the pre-training loss in all {len(ours)} "
        "variables, largest difference over the largest gradient",
        max(gap(ours[name], theirs[name]) for name in theirs) / size,
        1e-5,
    )
    fidelity(
        "model: gradients of the pre-training loss, norm of the difference "
        "over the norm, in the worst variable",
        max(
            np.linalg.norm(ours[name] - theirs[name])
            / max(np.linalg.norm(theirs[name]), 1e-3)
            for name in theirs
        ),
        2e-5,
    )


def adam():
    return AdamWeightDecay(
        WarmupLinearDecay(PEAK, STEPS, WARMUP), global_clipnorm=1.0
    )


def assert_trained(fidelity, check, losses, expected, model, after):
    """Compares the losses of all steps and the weights after them."""
    for name, values in losses.items():
        fidelity(
            f"{check}: {name} of the worst step",
            gap(values, expected[name]),
            2e-5,
        )
    ours = small_bert.arrays(model)
    fidelity(
        f"{check}: weights after them, largest difference",
        max(gap(ours[name], after[name]) for name in after),
        2e-5,
    )


def masked_lm_loss(labels, logits):
    """Per example, so that the mean over the batch is the original's loss.

    `labels` are ids and weights, [B, P, 2]; `logits` are [B, P, V].
    """
    ids, weights = labels[..., 0], labels[..., 1]
    each = keras.losses.sparse_categorical_crossentropy(
        ids, logits, from_logits=True
    )
    return ops.sum(each * weights, -1) / ops.mean(ops.sum(weights, -1))


def next_sentence_loss(labels, logits):
    """[B, 1] and [B, 2] -> [B]."""
    return keras.losses.sparse_categorical_crossentropy(
        labels[:, 0], logits, from_logits=True
    )


@pytest.mark.slow
def test_20_steps_of_fit(oracle, torch_numbers, fidelity):
    config, weights, expected = oracle
    model = filled(heads.BertPretrainer(config), weights)
    names = ("masked_lm_logits", "next_sentence_logits")
    functions = (masked_lm_loss, next_sentence_loss)
    model.compile(adam(), dict(zip(names, functions, strict=True)))
    words = [expected["masked_lm_ids"], expected["masked_lm_weights"]]
    labels = (np.stack(words, -1), expected["next_sentence_labels"])
    history = model.fit(
        {name: expected[name] for name in TASK_INPUTS[:4]},
        dict(zip(names, labels, strict=True)),
        batch_size=len(words[0]),
        epochs=STEPS,
        shuffle=False,
        verbose=0,
    ).history
    steps = torch_numbers["steps"]
    assert_trained(
        fidelity,
        "model: 20 steps of compile and fit from Google's random model",
        {"loss": np.array(history["loss"])},
        {"loss": steps["masked_lm_loss"] + steps["next_sentence_loss"]},
        model,
        torch_numbers["after"],
    )


@pytest.mark.slow
def test_20_steps_of_the_scripts(oracle, torch_numbers, fidelity):
    tf = pytest.importorskip("tensorflow")
    step = pytest.importorskip("bert_tf.training.step")
    config, weights, expected = oracle
    batch = {name: expected[name] for name in TASK_INPUTS}
    task = PretrainingTask(config, *batch["masked_lm_positions"].shape)
    model = filled(task.build_model(), weights)
    optimizer = adam()
    optimizer.build(model.trainable_variables)
    data = tf.data.Dataset.from_tensors(batch).repeat()
    records = step.TrainingStep(
        task, model, optimizer, tf.distribute.get_strategy()
    ).run(iter(data), tf.constant(STEPS))
    steps = torch_numbers["steps"]
    assert_trained(
        fidelity,
        "model: 20 steps of run_pretraining.py's loop",
        {name: records[name].numpy() for name in steps},
        steps,
        model,
        torch_numbers["after"],
    )
