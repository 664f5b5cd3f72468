"""Fine-tunes BERT to find named entities: CoNLL-2003, your own CoNLL file.

    python run_ner.py \\
        --data_dir=conll2003 \\
        --init_checkpoint=cased_L-12_H-768_A-12/bert_model.ckpt \\
        --output_dir=/tmp/ner_output \\
        --do_train --do_eval --do_predict \\
        --max_seq_length=128 --train_batch_size=32 \\
        --learning_rate=5e-5 --num_train_epochs=3

The configuration, the vocabulary and the casing are the checkpoint's own, or
those that --bert_config_file, --vocab_file and --do_lower_case name. The files
are train.txt, dev.txt and test.txt in --data_dir, or eng.train, eng.testa and
eng.testb, or those that --train_file, --dev_file and --test_file name: a word
a line with its columns, a blank line between sentences. Tags may be in IOB1 (as
the official ones are), IOB2, IOBES or BILOU.

The output directory then holds `eval_results.txt` and `.json`, precision,
recall and F1 of the entities, from 0 to 1, as conlleval counts them;
`dev_predictions.txt` and `test_predictions.txt`, which conlleval reads: the
columns of the files, separated by spaces, then the tags of the file and the
predicted ones, both in IOB2; and `release/`: the fine-tuned model with its
vocabulary and labels, which --init_checkpoint takes. The test file need not
have tags, and they are not used; to score it, name it as --dev_file.
--do_export writes a SavedModel for TensorFlow Serving into `export/`. The same
command given again goes on where it was stopped. Source: section 5.3 of the
paper.

    python run_ner.py --mode=feature_based --feature_layers=concat_last_four \\
        --learning_rate=1e-3 ...

leaves BERT as it is and trains two bidirectional LSTMs on its vectors, as in
table 7 of the paper; their rate is a higher one. To use what it has trained,
give --mode, --feature_layers and --lstm_size again.
`examples/paper/feature_based.py` runs the whole table.
"""

import dataclasses
import functools
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from absl import flags, logging

import bert_tf.quiet_tensorflow  # noqa: F401
from bert_tf import flags as bert_flags
from bert_tf.config import BertConfig
from bert_tf.data import bucketing, cache
from bert_tf.data.bucketing import Features, Padding
from bert_tf.data.conll import ConllFile, read_conll, write_conll
from bert_tf.data.tagged_sentences import (
    TaggingEncoding,
    content,
    count_rows,
    label_numbers,
    write_tagging_features,
)
from bert_tf.errors import InputError
from bert_tf.feature_tagger import CHOICES
from bert_tf.fine_tuning import command_line, output_folder, places, runs
from bert_tf.fine_tuning.inputs import (
    RECORDS,
    evaluation_data,
    training_data,
)
from bert_tf.fine_tuning.start import Start
from bert_tf.serving.tags import ServedTagger
from bert_tf.tasks import ner
from bert_tf.tasks.feature_tagging import FeatureTaggingTask
from bert_tf.tasks.tagging import TaggingTask
from bert_tf.training.distribution import is_chief
from bert_tf.training.estimator import Estimator
from bert_tf.training.settings import TrainingConfig
from bert_tf.training.trial_results import Trial
from bert_tf.training.workers import chief_first

FLAGS = flags.FLAGS

flags.DEFINE_string("data_dir", None, "Folder of the files.")
flags.DEFINE_string(
    "train_file", None, "The training file; train.txt, eng.train."
)
flags.DEFINE_string(
    "dev_file", None, "The development file; dev.txt, valid.txt, eng.testa."
)
flags.DEFINE_string("test_file", None, "The test file; test.txt, eng.testb.")
flags.DEFINE_integer(
    "word_column",
    0,
    "Number of the column of the words, from 0; from -1 backwards.",
)
flags.DEFINE_integer(
    "tag_column",
    -1,
    "Number of the column of the tags, from 0; from -1, the last, backwards.",
)
flags.DEFINE_list(
    "labels",
    None,
    "The tags, in IOB2; those of the training file, or of the model.",
)
flags.DEFINE_enum(
    "mode",
    "fine_tuning",
    ["fine_tuning", "feature_based"],
    "fine_tuning trains all of BERT; feature_based trains two bidirectional "
    "LSTMs on its vectors and leaves it as it is.",
)
flags.DEFINE_enum(
    "feature_layers",
    "concat_last_four",
    [*CHOICES],
    "Whose vectors feature_based takes: sum_ adds them with weights that are "
    "learned, sum_all those of all layers but the embeddings.",
)
flags.DEFINE_integer(
    "lstm_size",
    768,
    "Size of the LSTMs of feature_based, in each direction.",
    lower_bound=1,
)
bert_flags.define_training_flags()
command_line.define_flags()
bert_flags.define_device_flags()

# Flags that only one of the modes has a use for.
_FLAGS_OF_MODE = {
    "fine_tuning": (
        "num_frozen_layers",
        "layer_rate_decay",
        "gradient_checkpointing",
        "bilstm_head",
    ),
    "feature_based": ("feature_layers", "lstm_size"),
}


@dataclasses.dataclass(frozen=True)
class Split:
    """A file, ready to be used.

    Attributes:
      file: As it was read.
      features: The rows of its sentences, as the model takes them.
      padding: To what length batches of them are padded.
    """

    file: ConllFile
    features: Features
    padding: Padding

    def predict(
        self, estimator: Estimator, batch_size: int | None = None
    ) -> dict[str, np.ndarray]:
        """What the task keeps of every row, in order."""
        data = evaluation_data(self.features, self.padding)
        return estimator.predict(data, batch_size)

    def score(
        self, estimator: Estimator, predictions: Mapping[str, np.ndarray]
    ) -> dict[str, float]:
        """The metrics of what `predict` gave."""
        metrics = ner.score(estimator.task, predictions, self.file.sentences)
        return {**metrics, "global_step": estimator.step}

    def write(
        self, name: str, estimator: Estimator, predictions: Mapping[str, Any]
    ) -> None:
        """Writes the file with the tags that `predict` gave."""
        if is_chief(estimator.strategy):
            tags = ner.predicted_tags(
                estimator.task, predictions, self.file.sentences
            )
            path = os.path.join(FLAGS.output_dir, f"{name}_predictions.txt")
            write_conll(path, self.file, tags)


def main() -> None:
    """Reads the flags, fine-tunes, evaluates and predicts."""
    splits = command_line.splits()
    _require_flags_of_mode()
    start = places.find_start("token")
    # What is at fault shows before anything is written.
    read = {split: _read(split) for split in splits}
    encoding = _encoding(start, read.get("train"))
    for file in read.values():
        label_numbers(file.sentences, encoding.labels)
    task = _task(start.config, encoding)
    strategy = bert_flags.connect()
    config = command_line.training_config(start.config)
    schedule = command_line.schedule(ner.METRICS)
    padding = command_line.padding(strategy)
    plan = {}
    if FLAGS.do_train:
        num_rows = count_rows(read["train"].sentences, encoding)
        plan = schedule.plan(config, num_rows, strategy)
    _claim_output_dir(strategy, start, encoding, read)
    found = chief_first(
        strategy,
        functools.partial(_load, read, encoding, padding),
        "make the records",
    )
    if FLAGS.do_train:
        estimator = _train(task, strategy, start, plan, schedule, found)
    else:
        estimator = runs.open_model(
            task, strategy, start, FLAGS.output_dir, config
        )
    if FLAGS.do_eval:
        predictions = found["dev"].predict(estimator)
        metrics = found["dev"].score(estimator, predictions)
        runs.write_metrics(estimator, FLAGS.output_dir, metrics)
        found["dev"].write("dev", estimator, predictions)
    if FLAGS.do_predict:
        predictions = found["test"].predict(estimator, FLAGS.predict_batch_size)
        found["test"].write("test", estimator, predictions)
    serve = functools.partial(ServedTagger, encoding=encoding)
    places.export(estimator, "ner", serve)


def _require_flags_of_mode() -> None:
    """Raises InputError for a flag that would have no effect."""
    for mode, names in _FLAGS_OF_MODE.items():
        for name in names if mode != FLAGS.mode else ():
            if command_line.given(name) is not None:
                raise InputError(
                    f"expected --mode={mode} with --{name}. Received: "
                    f"--mode={FLAGS.mode}, which has no use for it"
                )


def _read(split: str) -> ConllFile:
    """Reads the file of a split; a test file need not have tags."""
    path = ner.find_file(split, FLAGS.data_dir, FLAGS[f"{split}_file"].value)
    return read_conll(
        path,
        word_column=FLAGS.word_column,
        tag_column=FLAGS.tag_column,
        needs_tags=split != "test",
    )


def _encoding(start: Start, train: ConllFile | None) -> TaggingEncoding:
    labels = ner.choose_labels(
        FLAGS.labels, start.labels, train.sentences if train else None
    )
    if start.labels and not FLAGS.do_train and {*labels} != {*start.labels}:
        logging.warning(
            "The model's labels %s are taken for %s, in this order",
            ", ".join(start.labels),
            ", ".join(labels),
        )
    return TaggingEncoding(
        vocab=start.vocab,
        do_lower_case=start.do_lower_case,
        strip_accents=start.strip_accents,
        max_seq_length=FLAGS.max_seq_length,
        labels=labels,
    )


def _task(config: BertConfig, encoding: TaggingEncoding) -> TaggingTask:
    if FLAGS.mode == "feature_based":
        return FeatureTaggingTask(
            config,
            encoding.schema,
            encoding.labels,
            layers=FLAGS.feature_layers,
            lstm_size=FLAGS.lstm_size,
        )
    return TaggingTask(
        config,
        encoding.schema,
        encoding.labels,
        frozen_layers=command_line.frozen_layers(config),
        gradient_checkpointing=FLAGS.gradient_checkpointing,
        bilstm_head=FLAGS.bilstm_head,
    )


def _claim_output_dir(
    strategy: Any,
    start: Start,
    encoding: TaggingEncoding,
    read: Mapping[str, ConllFile],
) -> None:
    facts = output_folder.facts("ner", "token", encoding.labels, start)
    facts["mode"] = FLAGS.mode
    if FLAGS.mode == "feature_based":
        names = _FLAGS_OF_MODE["feature_based"]
        facts |= {name: FLAGS[name].value for name in names}
    if "train" in read:
        contents = map(content, read["train"].sentences)
        facts["training_set"] = cache.checksum(contents)
    sources = [file.path for file in read.values()]
    dev = read["dev"].sentences if "dev" in read else ()
    places.claim_output_dir(
        strategy, facts, sources, cache.checksum(map(content, dev))
    )


def _load(
    read: Mapping[str, ConllFile], encoding: TaggingEncoding, padding: Padding
) -> dict[str, Split]:
    """Makes the records of files, unless they are there, and reads them."""
    found = {}
    for split, file in read.items():
        path = os.path.join(FLAGS.output_dir, f"{RECORDS[split]}.tf_record")
        write_tagging_features(
            path, file.sentences, encoding, sources=[file.path]
        )
        features = bucketing.load(path, encoding.schema, len(encoding.vocab))
        found[split] = Split(file, features, padding)
    return found


def _train(
    task: TaggingTask,
    strategy: Any,
    start: Start,
    plan: Mapping[Trial, TrainingConfig],
    schedule: runs.Schedule,
    found: Mapping[str, Split],
) -> Estimator:
    """Trains, and releases the model that is kept."""
    train = found["train"]

    def evaluate(estimator: Estimator) -> dict[str, float]:
        predictions = found["dev"].predict(estimator)
        return found["dev"].score(estimator, predictions)

    estimator = runs.FineTuning(
        task,
        strategy,
        start,
        FLAGS.output_dir,
        plan,
        schedule,
        training_data=functools.partial(
            training_data, train.features, train.padding
        ),
        evaluate=evaluate,
        metric=ner.METRICS[0],
        tokens_per_example=float(train.features.lengths.mean()),
    ).train()
    runs.release(
        estimator,
        FLAGS.output_dir,
        start,
        labels=task.labels,
        head=task.head,
        **places.trained_with(),
    )
    return estimator


if __name__ == "__main__":
    bert_flags.run(main, required=["output_dir"])
