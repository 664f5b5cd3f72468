"""The models with LSTMs of examples/paper: numbers by hand, whole runs."""

import bilstm_by_hand
import conll_files
import fine_tuning_runs
import in_process
import keras
import numpy as np
import paper_programs
import pytest
import sentence_files
import squad_files

from bert_tf.checkpoints.pretrained import open_pretrained
from bert_tf.modeling.variables import checkpoint_variables
from tests.backends import small_bert
from tests.backends.small_bert import CONFIG, LABELS, H, numbers

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("eagerly")]


@pytest.fixture
def lstms():
    with paper_programs.importable() as load:
        yield load("lstms")


def with_numbers(model):
    """Returns a model, the outputs of its encoder, its logits and weights."""
    inputs = small_bert.features()
    weights = numbers(checkpoint_variables(small_bert.fill(model)))
    encoded = numbers(model.bert(inputs))
    return encoded, numbers(model(inputs)), weights, inputs["input_mask"].sum(1)


def test_heads_on_a_bilstm(lstms):
    """From the last states of both directions, or from each token's states."""
    for made, key in (
        (lstms.BilstmClassifier(CONFIG, LABELS), ""),
        (lstms.BilstmTokenClassifier(CONFIG, LABELS), ""),
        (lstms.BilstmSpanLabeler(CONFIG), "cls/squad/"),
    ):
        encoded, outputs, weights, lengths = with_numbers(made)
        found = np.stack([*outputs.values()], axis=-1).squeeze()
        for row, length in enumerate(lengths):
            x = encoded["sequence_output"][row, :length].astype(float)
            x = bilstm_by_hand.bilstm(x, weights, "bilstm")
            if isinstance(made, lstms.BilstmClassifier):
                x = np.concatenate([x[-1, :H], x[0, H:]])
            expected = x @ weights[f"{key}output_weights"].T
            expected += weights[f"{key}output_bias"]
            kept = found[row, :length] if x.ndim == 2 else found[row]
            np.testing.assert_allclose(kept, expected, rtol=1e-4, atol=1e-5)


def test_a_tagger_on_a_frozen_encoder(lstms):
    keras.utils.set_random_seed(3)
    four = CONFIG.to_dict() | {"num_hidden_layers": 4}
    model = lstms.FeatureTagger(
        type(CONFIG).from_dict(four), LABELS, "sum_all", 4, dropout=0.0
    )
    encoded, outputs, weights, lengths = with_numbers(model)
    chosen = encoded["hidden_states"][model.choice.states]
    shares = np.exp(weights["layer_weights"])
    x = np.tensordot(shares / shares.sum(), np.stack(chosen), axes=1)
    logits = bilstm_by_hand.tagger_logits(x, lengths, weights)
    for row, expected in enumerate(logits):
        found = outputs["logits"][row, : lengths[row]]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert not any("/bert/" in v.path for v in model.trainable_variables)


def flags_of(program, folder):
    folder.mkdir()
    if program == "bilstm_squad":
        questions = squad_files.questions(5, seed=1)
        path = squad_files.write(folder / "train.json", questions)
        model = fine_tuning_runs.write_model(folder, words=squad_files.VOCAB)
        flags = {"train_file": path, "predict_file": path, "do_predict": True}
        return {**model, **flags, "max_query_length": 5}
    model = fine_tuning_runs.write_model(folder)
    if program.endswith("_ner"):
        return {**model, "data_dir": conll_files.write(folder / "data")}
    data = sentence_files.write(folder / "data", "sst-2")
    return {**model, "data_dir": data, "task_name": "sst-2"}


@pytest.mark.parametrize(
    "program", ["bilstm_classifier", "bilstm_ner", "bilstm_squad"]
)
def test_programs_train_all_but_the_pooler(program, tmp_path):
    run(program, tmp_path, **flags_of(program, tmp_path / "in"))
    released = open_pretrained(tmp_path / "release")
    width = fine_tuning_runs.CONFIG["hidden_size"]
    kernel = "bilstm/forward_lstm/lstm_cell/kernel"
    assert released.weights.shapes[kernel] == [width, 4 * width]
    [checkpoint] = tmp_path.glob("model.ckpt-*.index")
    moments = fine_tuning_runs.read(checkpoint.with_suffix(""))
    assert moments[f"{kernel}/adam_v"].any()
    assert "bert/pooler/dense/kernel/adam_v" not in moments


def run(program, folder, **flags):
    with paper_programs.importable(), in_process.script(program) as launch:
        words = fine_tuning_runs.arguments(
            **flags, do_eval=True, output_dir=folder
        )
        assert launch(words) == 0
