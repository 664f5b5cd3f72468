"""Fine-tunes BERT to turn texts into vectors: the job of run_embeddings.py.

Its options and files are explained in options/embeddings.py.
"""

import dataclasses
import functools
import os

import numpy as np
from absl import logging

import bert_tf.quiet_tensorflow  # noqa: F401
from bert_tf import command
from bert_tf.data import buckets, cache, processes
from bert_tf.data.batching import Features
from bert_tf.errors import InputError, in_file
from bert_tf.jobs import fine_tuning, output_folder, settings
from bert_tf.jobs.fine_tuning import FineTuning, TrainingResult
from bert_tf.jobs.options.embeddings import LARGEST, EmbeddingsConfig
from bert_tf.jobs.start import Start, resolve
from bert_tf.serving.served import ServedEncoder
from bert_tf.tasks.classification import write_predictions, write_test_results
from bert_tf.tasks.datasets import DataSet, SplitFile
from bert_tf.tasks.embedding import EmbeddingTask, number_texts
from bert_tf.tasks.encoding import Encoding
from bert_tf.tasks.examples import Example
from bert_tf.training.distribution import is_chief
from bert_tf.training.estimator import Estimator, batch_per_replica
from bert_tf.training.workers import chief_first

# The heads of models whose encoder can be used without training.
_HEADS = ("encoder", "pretraining", "masked_lm", "next_sentence")


@dataclasses.dataclass(frozen=True)
class Split:
    """The pairs of a split as they were read, and as inputs of the model."""

    examples: list[Example]
    features: Features


@settings.precision_restored()
def run(config: EmbeddingsConfig) -> TrainingResult:
    """Trains, evaluates, predicts and exports a model for vectors of texts."""
    config.check()
    splits = settings.splits(config)
    config, start = resolve(config, *_HEADS)
    config = _with_pooling(config, start)
    data_set = config.data_set()
    config.warn_ignored()
    largest = LARGEST.get(data_set.name, config.max_score)
    # All input is checked before anything is written.
    parts = {
        split: data_set.split(split, config.data_dir)[0] for split in splits
    }
    examples = {
        split: _read(part, largest, _is_scored(data_set))
        for split, part in parts.items()
    }
    encoding = start.encoding(
        Encoding, config.max_seq_length, problem="similarity", labels=()
    )
    task = _task(config, start, encoding, _is_scored(data_set))
    tuning = fine_tuning.prepare(
        config,
        start,
        task,
        [f"eval_{name}" for name in task.metrics],
        len(examples["train"]) if config.do_train else None,
    )
    if not _is_scored(data_set):
        _require_wrong_matches(tuning)
    facts = start.facts(data_set.name, "similarity", ())
    facts |= {"pooling": config.pooling, "normalize": config.normalize}
    if config.do_train:
        facts["training_set"] = _checksum(encoding, examples["train"])
    sources = [file for part in parts.values() for file in part.files]
    with output_folder.claimed(
        *(config, tuning.strategy, facts, sources),
        _checksum(encoding, examples.get("dev", [])),
    ):
        data = chief_first(
            tuning.strategy,
            functools.partial(_load, config, encoding, parts, examples),
            "make the records",
        )
        return _run_steps(tuning, encoding, data)


def _require_wrong_matches(tuning: FineTuning) -> None:
    """Raises InputError if a batch has one pair: its loss would be 0."""
    for training in tuning.plan.values():
        size = batch_per_replica(training, tuning.strategy)
        if size <= training.gradient_accumulation_steps:
            raise InputError(
                "Without `label_column` the other texts of a batch are the "
                "wrong matches, but each device computes one pair at a time. "
                "Raise `train_batch_size`, or lower "
                "`gradient_accumulation_steps`."
            )


def _run_steps(
    tuning: FineTuning, encoding: Encoding, data: dict[str, Split]
) -> TrainingResult:
    config, metrics = tuning.config, {}

    def evaluate(estimator: Estimator) -> dict[str, float]:
        dev = tuning.evaluation_data(data["dev"].features)
        return estimator.evaluate(dev)

    train = data["train"].features if config.do_train else None
    estimator = tuning.train_or_open(train, evaluate)
    if config.do_eval:
        metrics = evaluate(estimator)
        tuning.write_metrics(estimator, metrics)
    if config.do_predict:
        _predict(tuning, estimator, data["test"])

    def choose(outputs, input_mask):
        return {"vector": tuning.task.vectors(outputs, input_mask)}

    return tuning.finish(
        estimator,
        metrics,
        "embeddings",
        lambda model: ServedEncoder(model, encoding, choose),
    )


def _with_pooling(config: EmbeddingsConfig, start: Start) -> EmbeddingsConfig:
    """Fills in the options that the model may record."""
    config.require_no_bilstm()
    known = dict(start.trained_with)
    if not config.do_train:
        known |= output_folder.recorded_facts(config.output_dir)
    missing = {
        name: known.get(name, default)
        for name, default in (("pooling", "mean"), ("normalize", True))
        if getattr(config, name) is None
    }
    config = dataclasses.replace(config, **missing)
    logging.info(
        "Using `pooling=%s` `normalize=%s`",
        config.pooling,
        str(config.normalize).lower(),
    )
    return config


def _is_scored(data_set: DataSet) -> bool:
    return "label" in data_set.train[0].columns


def _read(part: SplitFile, largest: float, is_scored: bool) -> list[Example]:
    """Reads pairs, with similarities from 0 to 1 if they have some."""
    examples = part.read(
        is_labelled=is_scored and part.split != "test",
    )
    for n, example in enumerate(examples):
        score = example.label
        if score is None:
            continue
        assert isinstance(score, float)
        if not 0 <= score <= largest:
            raise in_file(
                example.where,
                f"the similarity must be from 0 to {largest:g}; got "
                f"{score:g}. Correct it, or give `max_score`.",
            )
        examples[n] = dataclasses.replace(example, label=score / largest)
    return examples


def _task(
    config: EmbeddingsConfig, start: Start, encoding: Encoding, is_scored: bool
) -> EmbeddingTask:
    assert config.pooling is not None
    return EmbeddingTask(
        start.config,
        encoding,
        config.pooling,
        bool(config.normalize),
        is_scored,
        frozen_layers=settings.frozen_layers(config, start.config),
        gradient_checkpointing=config.gradient_checkpointing,
    )


def _checksum(encoding: Encoding, examples: list[Example]) -> str:
    return cache.checksum(map(encoding.fingerprint, examples))


def _load(
    config: EmbeddingsConfig,
    encoding: Encoding,
    parts: dict[str, SplitFile],
    examples: dict[str, list[Example]],
) -> dict[str, Split]:
    """Writes the records of all splits, unless they exist, and loads them."""
    loaded = {}
    for split, part in parts.items():
        path = fine_tuning.record_file(config, split)
        encoding.write(
            path,
            examples[split],
            sources=part.files,
            num_workers=processes.available_cpus(),
        )
        features = buckets.load(path, encoding.schema, len(encoding.vocab))
        loaded[split] = Split(examples[split], number_texts(features))
    return loaded


def _predict(tuning: FineTuning, estimator: Estimator, split: Split) -> None:
    """Writes the cosines of a test set."""
    config = tuning.config
    predictions = estimator.predict(
        tuning.evaluation_data(split.features), config.predict_batch_size
    )
    if not is_chief(estimator.strategy):
        return
    cosines = np.asarray(predictions["cosines"], np.float32)
    path = functools.partial(os.path.join, config.output_dir)
    write_test_results(path("test_results.tsv"), cosines)
    write_predictions(
        path("predictions.tsv"), split.examples, "regression", (), cosines
    )


if __name__ == "__main__":
    command.run_job("embeddings")
