"""`fine_tune` with a kind of task that the library does not have.

The number of a word is its number of letters, one for each token of a text.
"""

import dataclasses
import json

import fine_tuning_runs
import numpy as np
import pytest
from keras import ops

from bert_tf.data.schema import Feature
from bert_tf.errors import InputError
from bert_tf.jobs.fine_tuning import Split, fine_tune
from bert_tf.jobs.settings import FineTuningOptions, model_options
from bert_tf.jobs.start import resolve
from bert_tf.modeling.heads import BertTokenClassifier
from bert_tf.tasks.encoding import Encoded, RowEncoding, pad
from bert_tf.tasks.task import FineTuningTask

LENGTH = 9
TEXTS = ["a bb ccc", "dddd", "ccc a a dddd", "", "bb bb"]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "bb", "ccc", "dddd"]


@dataclasses.dataclass(frozen=True)
class LetterEncoding(RowEncoding[str]):
    """Makes a row of each text that has a word."""

    unit = "texts"

    @property
    def schema(self):
        names = ("input_ids", "input_mask", "segment_ids")
        flag, shape = "max_seq_length", (self.max_seq_length,)
        return (
            *(Feature(name, shape, "int64", flag) for name in names),
            Feature("numbers", shape, "float32", flag),
        )

    def encode(self, examples):
        texts = [text for text in examples if text]
        ids = [self.tokenizer.encode(text) for text in texts]
        input_ids, input_mask = pad(ids, self.max_seq_length)
        numbers, _ = pad([[*map(len, t.split())] for t in texts], LENGTH)
        batch = {"input_ids": input_ids, "input_mask": input_mask}
        batch |= {"segment_ids": 0 * input_ids, "numbers": 1.0 * numbers}
        return Encoded(batch, np.array([bool(text) for text in examples], int))

    def fingerprint(self, example):
        return repr(example).encode()


class LetterTask(FineTuningTask):
    head = "token"
    metrics = ("loss",)

    def make_model(self, **options):
        return BertTokenClassifier(self.config, 1, **options)

    def is_element(self, features):
        return ops.cast(features["input_mask"], "float32")

    def element_losses(self, features, outputs):
        return ops.square(outputs["logits"][..., 0] - features["numbers"])

    def predictions(self, features, outputs):
        return {"loss": self.losses(features, outputs)["loss"]}

    def score(self, predictions, examples=()):
        return {"eval_loss": float(predictions["loss"].mean())}


def run(folder, texts=(TEXTS, TEXTS[:2]), **changes):
    model = fine_tuning_runs.write_model(folder / "model", WORDS)
    flags = {**fine_tuning_runs.FLAGS, **model, **changes}
    flags |= {"max_seq_length": LENGTH, "output_dir": str(folder / "out")}
    options = FineTuningOptions(**flags)
    config, start = resolve(options, "token")
    encoding = start.encoding(LetterEncoding, config.max_seq_length)
    options = model_options(config, start.config)
    task = LetterTask(start.config, encoding, **options)
    names = ("train", "dev") if config.do_eval else ("train",)
    splits = [*map(Split, names, texts)]
    return fine_tune(config, start, task, splits, name="letters")


def test_a_custom_task_trains_evaluates_and_resumes(tmp_path):
    result = run(tmp_path, do_eval=True, num_train_epochs=30)
    assert result.metrics["global_step"] == 30
    # 15 if every number were 0.
    assert result.metrics["eval_loss"] < 5
    assert result.release == str(tmp_path / "out" / "release")
    record = json.loads((tmp_path / "out" / "fine_tuning.json").read_text())
    assert record["facts"]["task"] == "letters"
    assert record["facts"]["problem"] == "token"
    again = run(tmp_path, do_eval=True, num_train_epochs=30)
    assert again.metrics == result.metrics


def test_wrong_inputs_are_errors(tmp_path):
    with pytest.raises(InputError, match="none of the texts can be used"):
        run(tmp_path, [[""]])
    with pytest.raises(InputError, match="letters cannot be exported"):
        run(tmp_path, do_export=True)
    with pytest.raises(InputError, match="need the split 'test'"):
        run(tmp_path, do_predict=True)
    assert not (tmp_path / "out").exists()
