"""Many models trained at once, for the paper's tables on one GPU.

Training needs JAX, reading the examples TensorFlow; no environment of the
tests has both.
"""

import in_process
import keras
import numpy as np
import paper_programs
import pytest

from bert_tf import AdamWeightDecay, BertConfig
from bert_tf.kinds.pretraining.task import PretrainingTask

needs_jax = pytest.mark.skipif(
    keras.config.backend() != "jax", reason="trains with JAX"
)
CONFIG = BertConfig(
    31,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
)
TASK = PretrainingTask(CONFIG, 16, 2)


@pytest.fixture
def load():
    with paper_programs.importable() as load:
        yield load


def pretraining_arrays(length=16, predictions=2, count=40):
    """Returns random pre-training examples, as compact as the program's."""
    random = np.random.default_rng(7)
    tokens, words = [count, length], [count, predictions]
    return {
        "input_ids": random.integers(5, 31, tokens, np.uint8),
        "input_mask": np.ones(tokens, np.uint8),
        "segment_ids": np.zeros(tokens, np.uint8),
        "masked_lm_positions": random.integers(0, length, words, np.uint8),
        "masked_lm_ids": random.integers(5, 31, words, np.uint8),
        "masked_lm_weights": np.ones(words, np.float32),
        "next_sentence_labels": random.integers(0, 2, [count, 1], np.uint8),
    }


def trained(load, seeds):
    """Returns copies after 100 steps, the loss of each step, and weights."""
    copies = load("copies").Copies(TASK, seeds)
    phases = [(pretraining_arrays(), 50)] * 2
    found = list(copies.train(phases, 4, AdamWeightDecay(0.01)))
    assert [step for step, _ in found] == [50, 100]
    losses = np.concatenate([np.asarray(values) for _, values in found])
    return copies, losses, copies.weights()


@needs_jax
def test_a_copy_learns_as_it_does_alone(load):
    _, alone, weights = trained(load, [3])
    copies, beside, others = trained(load, [5, 3])
    assert beside.shape == (100, 2)
    np.testing.assert_allclose(beside[:5, 1], alone[:5, 0], rtol=1e-4)
    assert beside[0, 0] != pytest.approx(beside[0, 1], rel=1e-3)
    assert alone[-20:].mean() < alone[:20].mean()
    name = "bert/embeddings/word_embeddings"
    assert others[name].shape == (2, *weights[name].shape[1:])
    predictions = copies.predict(pretraining_arrays(), 16)
    assert predictions["masked_lm_correct"].shape == (2, 40)


SMALL = {
    "tasks": "SST-2",
    "model_size": "L-1_H-8_A-2",
    "vocab_size": 31,
    "max_seq_length": 16,
    "first_seq_length": 8,
    "num_train_steps": 100,
    "max_examples": 80,
    "num_pretraining_seeds": 2,
    "num_seeds": 2,
}


def flags(inputs, tmp_path, **given):
    folder = {"output_dir": tmp_path / "out"}
    return paper_programs.words({**inputs, **SMALL, **folder, **given})


@pytest.fixture
def inputs(tmp_path):
    found = paper_programs.write_inputs(tmp_path / "in")
    held_out = tmp_path / "in" / "held_out.txt"
    held_out.write_text(found["input_file"].read_text()[:2000])
    return {**found, "held_out_file": held_out}


@needs_jax
def test_training_and_the_table(load, inputs, tmp_path, capsys):
    program = load("side_by_side")
    out = tmp_path / "out"
    words = sorted({*inputs["input_file"].read_text().split()})
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    out.mkdir()
    (out / "vocab.txt").write_text("\n".join([*special, *words[:26]]) + "\n")
    rows = "BERT,No NSP,LTR & No NSP,+ BiLSTM"
    with paper_programs.program("side_by_side") as launched:
        given = {"table": "tasks", "rows": rows}
        words = flags(inputs, tmp_path, **given)
        config = in_process.parse(program, words).resolved()
        lengths = {"pretraining-8": 8, "pretraining-16": 16, "held_out": 16}
        for name, length in lengths.items():
            arrays = pretraining_arrays(length)
            program.save(config, f"arrays/{name}.npz", arrays)
        for column in program.columns_of(config):
            name = f"arrays/{column.title}"
            program.save(config, f"{name}-train.npz", column.training())
            program.save(config, f"{name}-dev.npz", column.development())
        given["do"] = "training,table"
        assert launched(flags(inputs, tmp_path, **given)) == 0
    output = capsys.readouterr().out
    assert "2 a cell" in output
    text = (out / "ablation_tasks.md").read_text()
    cells = [line for line in text.splitlines() if "±" in line]
    assert len(cells) == 4
    assert all(line.count("±") == 2 for line in cells)
    assert "causal_lm_loss" in (out / "ablation_tasks_curves.csv").read_text()


@pytest.mark.slow
@pytest.mark.skipif(
    keras.config.backend() != "tensorflow", reason="reads with TensorFlow"
)
def test_data_is_written_as_arrays(inputs, tmp_path, capsys):
    with paper_programs.program("side_by_side") as launched:
        assert launched(flags(inputs, tmp_path, do="data")) == 0
        assert launched(flags(inputs, tmp_path, do="training")) == 1
        assert "Set KERAS_BACKEND=jax" in capsys.readouterr().err
    with np.load(tmp_path / "out" / "arrays" / "pretraining-8.npz") as found:
        assert found["input_ids"].shape[1:] == (8,)
        assert found["input_ids"].dtype == np.uint8
        assert found["masked_lm_weights"].dtype == np.float32
    with np.load(tmp_path / "out" / "arrays" / "SST-2-train.npz") as found:
        assert found["input_ids"].shape == (40, 16)
