"""Options that contradict each other, and missing files."""

import pytest

from bert_tf import command
from bert_tf.base.options import declared, named
from bert_tf.checkpoints.checkpoint import Pretrained
from bert_tf.errors import InputError
from bert_tf.kinds.classification.options import ClassifierConfig
from bert_tf.kinds.pretraining.options import PretrainingConfig

OPTIONS = {job: command.options_of(job) for job in command.JOBS}
CHECKPOINT = {"init_checkpoint": "there"}
TEACHER = {"teacher": "there", **CHECKPOINT}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("there", "train.tsv", "dev.tsv"):
        (tmp_path / name).touch()
    return tmp_path


def classify(**flags):
    known = {"task_name": "cola", "data_dir": ".", "output_dir": "new"}
    known |= {"do_train": True, "bert_config_file": "there"}
    known |= {"vocab_file": "there"}
    ClassifierConfig(**{**known, **flags}).check()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"do_train": False}, "Nothing to do: pass at least one of `do_"),
        ({"data_dir": None}, "`data_dir` is required, except to export only"),
        ({"task_name": "colla"}, "`task_name` must be one of .*colla"),
        ({"use_tpu": True, "distribution_strategy": "mirrored"}, "auto or tpu"),
        ({"num_train_epochs": 0}, "must be more than 0 to train; got 0. Leave"),
        (
            {"do_train": False, "do_eval": True, "overwrite_output_dir": True},
            "has no effect without `do_train`",
        ),
        (
            {"lora_rank": 3, "num_frozen_layers": 0, **CHECKPOINT},
            "`num_frozen_layers` has no effect with `lora_rank`",
        ),
        (
            {"window_pooling": "max"},
            "`window_pooling` has no effect without `doc_stride`",
        ),
        # Files.
        ({"unlabeled_file": "no", **TEACHER}, "^Cannot read no: No such file"),
        ({"do_predict": True}, "no test.tsv, the test set of cola."),
        (
            {"task_name": "custom", "train_file": "no"},
            "no no, the training set of custom.",
        ),
    ],
)
def test_mistakes_are_found_before_anything_is_read(flags, message):
    with pytest.raises(InputError, match=message):
        classify(**flags)


@pytest.mark.parametrize(
    "flags",
    [
        {},
        TEACHER,
        {"task_name": "custom", "problem": "multi_label", "label_column": "a"},
        # Without training, these may be recorded in the checkpoint.
        {"do_train": False, "do_eval": True, "window_pooling": "max"},
        {"search": "paper", "num_train_epochs": 0},
        # Other file systems need TensorFlow.
        {"data_dir": "gs://a/b", "output_dir": "gs://a"},
        {"init_checkpoint": "hf://a/b", "teacher": "gs://a/b"},
        {"train_file": "gs://no/no", "vocab_file": "gs://v"},
        {"init_checkpoint": "uncased_L-12_H-768_A-12"},
    ],
)
def test_options_that_cannot_be_checked_yet_are_accepted(flags):
    classify(**flags)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"model_size": "tiny"}, "`model_size=tiny` needs `vocab_file`"),
        ({"input_file": "no*"}, "`input_file` has 'no\\*', which matches no"),
        ({"stop_at_step": 8, "num_train_steps": 7}, "`stop_at_step` must be"),
        ({"do_export": True, "objective": "causal_lm"}, "masked_lm with"),
    ],
)
def test_mistakes_in_a_command_to_pretrain(flags, message):
    known = {"input_file": "there", "output_dir": "new", "do_train": True}
    if "input_file" in flags:
        known |= CHECKPOINT
    with pytest.raises(InputError, match=message):
        PretrainingConfig(**{**known, **flags}).check()


def test_a_resumed_pre_training_does_not_need_its_first_checkpoint(folder):
    config = PretrainingConfig(
        input_file="there",
        output_dir="new",
        do_train=True,
        bert_config_file="there",
        init_checkpoint="no",
    )
    with pytest.raises(InputError, match=r"^no: there is no such checkpoint"):
        config.check()
    (folder / "new").mkdir()
    config.check()


@pytest.mark.parametrize("job", command.JOBS)
def test_models_record_the_recorded_options(job):
    values = dict.fromkeys(named(OPTIONS[job], recorded=True), 1)
    assert Pretrained("x", {}, **values).trained_with == values


@pytest.mark.parametrize("job", command.JOBS)
def test_options_need_options_that_a_job_has(job):
    existing = {name for kind in OPTIONS.values() for name in declared(kind)}
    for _, known in declared(OPTIONS[job]).values():
        assert known.needs.partition("=")[0] in {"", *existing}
        assert known.decides in ("", "model", "setting", "seed", "score")
