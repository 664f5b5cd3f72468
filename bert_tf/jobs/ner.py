"""Fine-tunes BERT to find named entities: the job of run_ner.py.

Its options and files are explained in options/ner.py.
"""

import contextlib
import functools
import os
from collections.abc import Mapping

from absl import logging

import bert_tf.quiet_tensorflow  # noqa: F401
from bert_tf import command
from bert_tf.data import buckets, cache
from bert_tf.data.batching import Features
from bert_tf.jobs import fine_tuning, output_folder, settings
from bert_tf.jobs.fine_tuning import FineTuning, TrainingResult
from bert_tf.jobs.options.ner import NerConfig
from bert_tf.jobs.start import Start, resolve
from bert_tf.jobs.teacher import find_teacher
from bert_tf.options import named
from bert_tf.serving.tags import ServedTagger
from bert_tf.tasks import ner
from bert_tf.tasks.ner import (
    ConllFile,
    TaggingEncoding,
    label_numbers,
    read_conll,
    write_conll,
)
from bert_tf.tasks.tagging import METRICS, FeatureTaggingTask, TaggingTask
from bert_tf.training.distribution import is_chief
from bert_tf.training.estimator import Estimator
from bert_tf.training.workers import chief_first


@settings.precision_restored()
def run(config: NerConfig) -> TrainingResult:
    """Fine-tunes, evaluates, predicts and exports a tagger."""
    config.check()
    splits = settings.splits(config)
    config, start = resolve(config, "token")
    # All input is checked before anything is written.
    read = {split: _read(config, split) for split in splits}
    encoding = _encoding(config, start, read.get("train"))
    for file in read.values():
        label_numbers(file.sentences, encoding.labels)
    num_rows = None
    if config.do_train:
        num_rows = encoding.count_rows(read["train"].sentences)
    task = _task(config, start, encoding)
    teacher = find_teacher(config, start, task)
    tuning = fine_tuning.prepare(
        config, start, task, METRICS, num_rows, teacher
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
            metrics = task.score(predictions, read["dev"].sentences)
            return {**metrics, "global_step": estimator.step}

        def write(split: str, estimator: Estimator, predictions) -> None:
            if is_chief(tuning.strategy):
                path = f"{split}_predictions.txt"
                path = os.path.join(config.output_dir, path)
                sentences = read[split].sentences
                tags = task.tags(predictions, sentences)
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


def _read(config: NerConfig, split: str) -> ConllFile:
    """Reads the file of a split; a test file need not have tags."""
    return read_conll(
        config.find_file(split),
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
            encoding,
            layers=config.feature_layers,
            lstm_size=config.lstm_size,
        )
    return TaggingTask(
        start.config,
        encoding,
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
        names = named(NerConfig, needs="mode=feature_based")
        facts |= {name: getattr(config, name) for name in names}
    if "train" in read:
        contents = map(encoding.fingerprint, read["train"].sentences)
        facts["training_set"] = cache.checksum(contents)
    sources = [file.path for file in read.values()]
    dev = read["dev"].sentences if "dev" in read else ()
    return output_folder.claimed(
        config,
        tuning.strategy,
        facts,
        sources,
        cache.checksum(map(encoding.fingerprint, dev)),
    )


def _load(
    config: NerConfig, read: Mapping[str, ConllFile], encoding: TaggingEncoding
) -> dict[str, Features]:
    """Writes the records of all files, unless they exist, and loads them."""
    features = {}
    for split, file in read.items():
        path = fine_tuning.record_file(config, split)
        encoding.write(path, file.sentences, sources=[file.path])
        features[split] = buckets.load(
            path, encoding.schema, len(encoding.vocab)
        )
    return features


if __name__ == "__main__":
    command.run_job("ner")
