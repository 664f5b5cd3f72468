"""Whole runs of the models with LSTMs of examples/paper."""

import conll_files
import fine_tuning_runs
import paper_programs
import pytest
import sentence_files
import squad_files

from bert_tf.checkpoints.pretrained import open_pretrained

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("eagerly")]


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
    flags = flags_of(program, tmp_path / "in")
    with paper_programs.program(program) as launch:
        words = fine_tuning_runs.arguments(
            **flags, do_eval=True, output_dir=tmp_path
        )
        assert launch(words) == 0
    released = open_pretrained(tmp_path / "release")
    width = fine_tuning_runs.CONFIG["hidden_size"]
    kernel = "bilstm/forward_lstm/lstm_cell/kernel"
    assert released.weights.shapes[kernel] == [width, 4 * width]
    [checkpoint] = tmp_path.glob("model.ckpt-*.index")
    moments = fine_tuning_runs.read(checkpoint.with_suffix(""))
    assert moments[f"{kernel}/adam_v"].any()
    assert "bert/pooler/dense/kernel/adam_v" not in moments
