"""Fine-tunes BERT to find named entities: CoNLL-2003 or a custom CoNLL file.

    python run_ner.py \\
        --data_dir=conll2003 \\
        --init_checkpoint=cased_L-12_H-768_A-12/bert_model.ckpt \\
        --output_dir=/tmp/ner_output \\
        --do_train --do_eval --do_predict \\
        --max_seq_length=128 --train_batch_size=32 \\
        --learning_rate=5e-5 --num_train_epochs=3

The configuration, vocabulary and casing are read from the checkpoint; use
--bert_config_file, --vocab_file and --do_lower_case if it does not contain
them. The files in --data_dir are train.txt, dev.txt and test.txt, or eng.train,
eng.testa and eng.testb; --train_file, --dev_file and --test_file name other
files. Each line has a word and its columns, and a blank line ends a sentence.
Tags may be in IOB1 (as the official files are), IOB2, IOBES or BILOU.

The job writes to --output_dir:

- `eval_results.txt` and `.json`, with --do_eval: precision, recall and F1 of
  the entities, from 0 to 1, as conlleval computes them.
- `dev_predictions.txt` and `test_predictions.txt`, which conlleval reads: the
  columns of the file, its tags and the predicted tags, both in IOB2. A test
  file needs no tags; to score it, pass it as --dev_file.
- `release/`, the fine-tuned model with its vocabulary and labels, which
  --init_checkpoint accepts.
- `export/`, with --do_export: a SavedModel for TensorFlow Serving.

Rerun the command to resume. Source: section 5.3 of the paper.

    python run_ner.py --mode=feature_based --feature_layers=concat_last_four \\
        --learning_rate=1e-3 ...

freezes BERT and trains two bidirectional LSTMs on its vectors, as in table 7
of the paper, with a higher learning rate. To use such a model later, give
--mode, --feature_layers and --lstm_size again.
`examples/paper/feature_based.py` runs the whole table.
"""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Mapping

from absl import logging

import bert_tf.quiet_tensorflow  # noqa: F401
from bert_tf import cli
from bert_tf.data import buckets, cache
from bert_tf.data.batching import Features
from bert_tf.errors import InputError
from bert_tf.feature_tagger import CHOICES
from bert_tf.jobs import fine_tuning, output_folder, settings
from bert_tf.jobs.fine_tuning import FineTuning, TrainingResult
from bert_tf.jobs.settings import DataOptions, DistillationOptions
from bert_tf.jobs.start import Start, resolve
from bert_tf.jobs.teacher import find_teacher
from bert_tf.options import option
from bert_tf.serving.tags import ServedTagger
from bert_tf.tasks import ner
from bert_tf.tasks.ner import (
    ConllFile,
    TaggingEncoding,
    content,
    count_rows,
    label_numbers,
    read_conll,
    write_conll,
    write_tagging_features,
)
from bert_tf.tasks.tagging import FeatureTaggingTask, TaggingTask
from bert_tf.training.distribution import is_chief
from bert_tf.training.estimator import Estimator
from bert_tf.training.workers import chief_first

# Options that only one of the modes uses.
_OPTIONS_OF_MODE = {
    "fine_tuning": (
        "num_frozen_layers",
        "lora_rank",
        "lora_alpha",
        "layer_rate_decay",
        "gradient_checkpointing",
        "bilstm_head",
        "teacher",
    ),
    "feature_based": ("feature_layers", "lstm_size"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class NerConfig(DataOptions, DistillationOptions):
    """Options of `run_ner.py`."""

    word_column: int = option(
        "Number of the column with the words, from 0; -1 is the last.",
        default=0,
    )
    tag_column: int = option(
        "Number of the column with the tags, from 0; -1 is the last.",
        default=-1,
    )
    labels: tuple[str, ...] | None = option(
        "The tags, in IOB2. Default: the tags of the training file, or of the "
        "model.",
        default=None,
    )
    mode: str = option(
        "fine_tuning trains all of BERT; feature_based trains two "
        "bidirectional LSTMs on BERT's vectors and leaves BERT unchanged.",
        default="fine_tuning",
        choices=tuple(_OPTIONS_OF_MODE),
    )
    feature_layers: str = option(
        "Layers whose vectors feature_based uses. sum_ adds them with learned "
        "weights; sum_all uses all layers but the embeddings.",
        default="concat_last_four",
        choices=tuple(CHOICES),
    )
    lstm_size: int = option(
        "Size of the LSTMs of feature_based, in each direction.",
        default=768,
        at_least=1,
        at_most=10**6,
    )


@settings.precision_restored()
def run(config: NerConfig) -> TrainingResult:
    """Fine-tunes, evaluates, predicts and exports a tagger."""
    splits = settings.splits(config)
    _require_options_of_mode(config)
    config, start = resolve(config, "token")
    # All input is checked before anything is written.
    read = {split: _read(config, split) for split in splits}
    encoding = _encoding(config, start, read.get("train"))
    for file in read.values():
        label_numbers(file.sentences, encoding.labels)
    num_rows = None
    if config.do_train:
        num_rows = count_rows(read["train"].sentences, encoding)
    task = _task(config, start, encoding)
    teacher = find_teacher(config, start, task)
    tuning = fine_tuning.prepare(
        config, start, task, ner.METRICS, num_rows, teacher
    )
    with _claimed_output_dir(tuning, encoding, read):
        features = chief_first(
            tuning.strategy,
            functools.partial(_load, config, read, encoding),
            "make the records",
        )

        def predict(split: str, estimator: Estimator, batch_size=None):
            data = tuning.evaluation_data(features[split])
            return estimator.predict(data, batch_size)

        def score(estimator: Estimator, predictions) -> dict[str, float]:
            metrics = ner.score(task, predictions, read["dev"].sentences)
            return {**metrics, "global_step": estimator.step}

        def write(split: str, estimator: Estimator, predictions) -> None:
            if is_chief(tuning.strategy):
                path = f"{split}_predictions.txt"
                path = os.path.join(config.output_dir, path)
                sentences = read[split].sentences
                tags = ner.predicted_tags(task, predictions, sentences)
                write_conll(path, read[split], tags)

        estimator = tuning.train_or_open(
            features.get("train"),
            lambda estimator: score(estimator, predict("dev", estimator)),
        )
        metrics = {}
        if config.do_eval:
            predictions = predict("dev", estimator)
            metrics = score(estimator, predictions)
            tuning.write_metrics(estimator, metrics)
            write("dev", estimator, predictions)
        if config.do_predict:
            predictions = predict("test", estimator, config.predict_batch_size)
            write("test", estimator, predictions)
        serve = functools.partial(ServedTagger, encoding=encoding)
        return tuning.finish(estimator, metrics, "ner", serve)


def _require_options_of_mode(config: NerConfig) -> None:
    """Raises InputError for an option of the other mode, unless default."""
    defaults = {f.name: f.default for f in dataclasses.fields(config)}
    for mode, names in _OPTIONS_OF_MODE.items():
        for name in names:
            if mode != config.mode and getattr(config, name) != defaults[name]:
                raise InputError(
                    f"--{name} has no effect with --mode={config.mode}. Leave "
                    f"it out, or give --mode={mode}."
                )


def _read(config: NerConfig, split: str) -> ConllFile:
    """Reads the file of a split; a test file need not have tags."""
    path = ner.find_file(
        split, config.data_dir, getattr(config, f"{split}_file")
    )
    return read_conll(
        path,
        word_column=config.word_column,
        tag_column=config.tag_column,
        needs_tags=split != "test",
    )


def _encoding(
    config: NerConfig, start: Start, train: ConllFile | None
) -> TaggingEncoding:
    labels = ner.choose_labels(
        config.labels, start.labels, train.sentences if train else None
    )
    if start.labels and not config.do_train and {*labels} != {*start.labels}:
        logging.warning(
            "Mapping the model's labels %s to %s, in this order",
            ", ".join(start.labels),
            ", ".join(labels),
        )
    return start.encoding(TaggingEncoding, config.max_seq_length, labels=labels)


def _task(
    config: NerConfig, start: Start, encoding: TaggingEncoding
) -> TaggingTask:
    if config.mode == "feature_based":
        return FeatureTaggingTask(
            start.config,
            encoding.schema,
            encoding.labels,
            layers=config.feature_layers,
            lstm_size=config.lstm_size,
        )
    return TaggingTask(
        start.config,
        encoding.schema,
        encoding.labels,
        frozen_layers=settings.frozen_layers(config, start.config),
        gradient_checkpointing=config.gradient_checkpointing,
        bilstm_head=config.bilstm_head,
        **_dropout(start),
    )


def _dropout(start: Start) -> dict[str, float]:
    """Returns the option for the dropout rate that a checkpoint records."""
    rate = start.classifier_dropout
    return {} if rate is None else {"dropout": rate}


def _claimed_output_dir(
    tuning: FineTuning,
    encoding: TaggingEncoding,
    read: Mapping[str, ConllFile],
) -> contextlib.AbstractContextManager[None]:
    config = tuning.config
    facts = tuning.facts("ner", "token", encoding.labels)
    facts["mode"] = config.mode
    if config.mode == "feature_based":
        names = _OPTIONS_OF_MODE["feature_based"]
        facts |= {name: getattr(config, name) for name in names}
    if "train" in read:
        contents = map(content, read["train"].sentences)
        facts["training_set"] = cache.checksum(contents)
    sources = [file.path for file in read.values()]
    dev = read["dev"].sentences if "dev" in read else ()
    return output_folder.claimed(
        config,
        tuning.strategy,
        facts,
        sources,
        cache.checksum(map(content, dev)),
    )


def _load(
    config: NerConfig, read: Mapping[str, ConllFile], encoding: TaggingEncoding
) -> dict[str, Features]:
    """Writes the records of all files, unless they exist, and loads them."""
    features = {}
    for split, file in read.items():
        path = fine_tuning.record_file(config, split)
        write_tagging_features(
            path, file.sentences, encoding, sources=[file.path]
        )
        features[split] = buckets.load(
            path, encoding.schema, len(encoding.vocab)
        )
    return features


if __name__ == "__main__":
    cli.main(run)
