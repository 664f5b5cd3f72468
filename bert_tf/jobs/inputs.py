"""The examples of a split as records, and the records as batches."""

import dataclasses
import functools
import os
from collections.abc import Iterable
from typing import Any

from bert_tf.data import bucketing
from bert_tf.data.bucketing import Features, Padding
from bert_tf.data.examples import Example
from bert_tf.tasks.encoding import Encoding, write_features
from bert_tf.training.estimator import Estimator, EvaluationData, TrainingData
from bert_tf.training.settings import TrainingConfig

# The original's names of the files, by split.
RECORDS = {"train": "train", "dev": "eval", "test": "predict"}


@dataclasses.dataclass(frozen=True)
class Split:
    """A part of a data set, ready to be used.

    Attributes:
      examples: As they were read.
      features: As the model takes them, in the same order.
      suffix: What the part adds to the names of results.
      submission: Its file in a submission to the GLUE leaderboard.
    """

    examples: list[Example]
    features: Features
    suffix: str = ""
    submission: str | None = None


@dataclasses.dataclass(frozen=True)
class Inputs:
    """How examples become batches.

    Attributes:
      folder: Where the records are kept.
      encoding: From texts to ids.
      padding: To what length.
      num_workers: Processes that tokenize.
    """

    folder: str
    encoding: Encoding
    padding: Padding
    num_workers: int = 1

    def load(self, split: str, part: Any, examples: list[Example]) -> Split:
        """Makes the records of a part, unless they are there, and reads them.

        Args:
          split: "train", "dev" or "test".
          part: A `bert_tf.tasks.parts.Part`.
          examples: What was read of it.

        Raises:
          InputError: A label does not fit, or a file cannot be written.
        """
        name = f"{RECORDS[split]}{part.suffix}.tf_record"
        path = os.path.join(self.folder, name)
        write_features(
            path,
            examples,
            self.encoding,
            sources=part.files,
            reading=part.reading,
            num_workers=self.num_workers,
        )
        features = bucketing.load(
            path, self.encoding.schema, len(self.encoding.vocab)
        )
        return Split(examples, features, part.suffix, part.submission)

    def training_data(
        self, split: Split, config: TrainingConfig
    ) -> TrainingData:
        """What `Estimator.train` takes."""
        return training_data(split.features, self.padding, config)

    def evaluation_data(self, split: Split) -> EvaluationData:
        """What `Estimator.evaluate` and `predict` take."""
        return evaluation_data(split.features, self.padding)

    def evaluate(
        self, splits: Iterable[Split], estimator: Estimator
    ) -> dict[str, float]:
        """The metrics of all parts, those after the first with its suffix."""
        metrics: dict[str, float] = {}
        for split in splits:
            found = estimator.evaluate(self.evaluation_data(split))
            step = found.pop("global_step")
            metrics |= {f"{k}{split.suffix}": v for k, v in found.items()}
            metrics["global_step"] = step
        return metrics


def training_data(
    features: Features, padding: Padding, config: TrainingConfig
) -> TrainingData:
    """What `Estimator.train` takes: shuffled batches of one length each."""
    return functools.partial(
        bucketing.training_dataset,
        features,
        padding=padding,
        global_batch_size=config.train_batch_size,
        num_batches=config.num_train_steps,
        seed=config.random_seed,
    )


def evaluation_data(features: Features, padding: Padding) -> EvaluationData:
    """What `Estimator.evaluate` and `predict` take: each example once."""
    return functools.partial(
        bucketing.evaluation_dataset, features, padding=padding
    )
