"""Fine-tunes BERT for sentence embeddings: the job of run_embeddings.py.

Its options and files are explained in options.py.
"""

import dataclasses
import os
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError, in_file, listed
from bert_tf.jobs import settings
from bert_tf.jobs.fine_tuning import Split, Steps, fine_tune
from bert_tf.jobs.start import Start, resolve
from bert_tf.jobs.trainings import TrainingResult
from bert_tf.kinds.vectors import task as vectors
from bert_tf.kinds.vectors.options import LARGEST, EmbeddingsConfig
from bert_tf.kinds.vectors.task import EmbeddingTask
from bert_tf.serving.served import ServedTask
from bert_tf.tasks.datasets import SplitFile
from bert_tf.tasks.encoding import Encoding
from bert_tf.tasks.predictions import write_predictions, write_test_results
from bert_tf.training.estimator import batch_per_replica
from bert_tf.training.settings import TrainingConfig

# The heads of models whose encoder can be used without training.
_HEADS = ("encoder", "pretraining", "masked_lm", "next_sentence")


def run(config: EmbeddingsConfig) -> TrainingResult:
    """Trains, evaluates, predicts and exports an embedding model."""
    config.check()
    splits = settings.splits(config)
    config, start = resolve(config, *_HEADS)
    config = _with_pooling(config, start)
    data_set = config.data_set()
    config.warn_ignored()
    is_scored = "label" in data_set.train[0].columns
    largest = LARGEST.get(data_set.name, config.max_score)
    # All files are found before one is read.
    parts = [data_set.split(name, config.data_dir)[0] for name in splits]
    read = [_read(part, largest, is_scored) for part in parts]
    task = EmbeddingTask(
        start.config,
        start.encoding(
            Encoding, config.max_seq_length, problem="similarity", labels=()
        ),
        config.pooling,
        config.normalize,
        is_scored,
        **settings.model_options(config, start.config),
    )
    return fine_tune(
        config,
        start,
        task,
        read,
        name="embeddings",
        steps=_Steps(task, read),
        serve=lambda model: ServedTask(model, task),
        facts={
            "task": data_set.name,
            "pooling": config.pooling,
            "normalize": config.normalize,
        },
    )


class _Steps(Steps):
    """Numbers the texts, and writes the cosines of a test set."""

    def __init__(self, task: EmbeddingTask, splits: list[Split]):
        super().__init__(task)
        # The pairs to train on that have no similarity.
        self._text_ids = vectors.numbers_of(
            (example.text_a, example.text_b)
            for split in splits
            for example in split.examples
            if split.name == "train" and example.label is None
        )

    def check(
        self, training: TrainingConfig, strategy: tf.distribute.Strategy
    ) -> None:
        """See `require_negatives`."""
        size = batch_per_replica(training, strategy)
        vectors.require_negatives(
            self._text_ids, size // training.gradient_accumulation_steps
        )

    def complete(self, split: Split) -> Split:
        assert split.features is not None
        features = vectors.number_texts(split.features)
        return dataclasses.replace(split, features=features)

    def write(
        self, split: Split, predictions: Mapping[str, np.ndarray], folder: str
    ) -> None:
        if not split.is_predicted:
            return
        cosines = np.asarray(predictions["cosines"], np.float32)
        write_test_results(os.path.join(folder, "test_results.tsv"), cosines)
        path = os.path.join(folder, "predictions.tsv")
        write_predictions(path, split.examples, "regression", (), cosines)


def _with_pooling(config: EmbeddingsConfig, start: Start) -> EmbeddingsConfig:
    """Fills in the options that the model may record."""
    if start.unsupported_modules and not config.do_train:
        raise InputError(
            f"{start.path}: bert_tf cannot compute "
            f"{listed(start.unsupported_modules)}. Pass another model, or "
            "`do_train`, which starts from the encoder alone."
        )
    missing = {
        name: start.trained_with.get(name, default)
        for name, default in vectors.DEFAULTS.items()
        if getattr(config, name) is None
    }
    return dataclasses.replace(config, **missing)


def _read(part: SplitFile, largest: float, is_scored: bool) -> Split:
    """Reads pairs, with similarities from 0 to 1 if the file has them."""
    examples = part.read(is_labelled=is_scored and part.split != "test")
    for n, example in enumerate(examples):
        score = example.label
        if not isinstance(score, float):
            continue
        if not 0 <= score <= largest:
            raise in_file(
                example.where,
                f"the similarity must be from 0 to {largest:g}; got "
                f"{score:g}. Correct it or, for custom files, pass "
                "`max_score`.",
            )
        examples[n] = dataclasses.replace(example, label=score / largest)
    return Split(part.split, examples, [part.path])
