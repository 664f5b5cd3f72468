"""What the scripts run on a TPU: tasks to train, to evaluate and to predict.

Everything is theirs: the task, batches from the pipeline at fixed lengths as
on a TPU, the estimator and its steps under TPUStrategy. Evaluation and
prediction are one step; metrics are reckoned on the host.
"""

import dataclasses
import functools
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tpu_compiler
import tpu_graph

from bert_tf.config import BertConfig
from bert_tf.data import buckets, pipeline, records, schema
from bert_tf.data.schema import Schema
from bert_tf.data.sequence_packing import SequencePacking
from bert_tf.jobs import fine_tuning
from bert_tf.tasks.classification import ClassificationTask, MultipleChoiceTask
from bert_tf.tasks.pretraining import PretrainingTask
from bert_tf.tasks.question_answering import SpanTask
from bert_tf.tasks.tagging import TaggingTask
from bert_tf.training.estimator import Estimator
from bert_tf.training.settings import TrainingConfig

STEPS = ("training", "prediction")

CHOICES = 4  # SWAG's
# Of CoNLL-2003, in IOB2.
TAGS = ("O", *(f"{p}-{k}" for k in ("LOC", "MISC", "ORG", "PER") for p in "BI"))
# The share of the places that is masked, as in `create_pretraining_data.py`.
MASKED = 0.15

# How a task's batches are made: from its records, and how to train.
_MakeData = Callable[..., Any]


def _pretraining(config: BertConfig, length: int) -> PretrainingTask:
    return PretrainingTask(config, length, math.ceil(MASKED * length))


def _classification(config: BertConfig, length: int, **options: Any):
    return ClassificationTask(
        config,
        schema.classification_schema(length),
        "single_label",
        ("no", "yes"),
        **options,
    )


def _multiple_choice(config: BertConfig, length: int, **options: Any):
    return MultipleChoiceTask(
        config,
        schema.classification_schema(
            length, "multiple_choice", num_choices=CHOICES
        ),
        "multiple_choice",
        tuple(map(str, range(CHOICES))),
        **options,
    )


def _spans(config: BertConfig, length: int, **options: Any) -> SpanTask:
    return SpanTask(config, schema.span_schema(length), **options)


def _tokens(config: BertConfig, length: int, **options: Any) -> TaggingTask:
    return TaggingTask(config, schema.tagging_schema(length), TAGS, **options)


# The task of each script, run_classifier.py having two, and the one of
# run_pretraining.py --pack_sequences.
TASKS = {
    "pretraining": _pretraining,
    "packed_pretraining": _pretraining,
    "classification": _classification,
    "multiple_choice": _multiple_choice,
    "spans": _spans,
    "tokens": _tokens,
}


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of one chip.

    Attributes:
      task: One of TASKS.
      kind: One of STEPS.
      config: The model's shape.
      max_seq_length: Places of a sequence.
      batch_size: Examples of a chip.
      settings: Of training, beside the defaults of the scripts.
      options: Of a fine-tuned task, likewise.
    """

    task: str
    kind: str
    config: BertConfig
    max_seq_length: int
    batch_size: int
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def trace(
        self, strategy: tf.distribute.Strategy
    ) -> tf.types.experimental.ConcreteFunction:
        """The step under a strategy: a graph of all replicas' batches.

        It has the precision of Keras's current policy.
        """
        batch_size = self.batch_size * strategy.num_replicas_in_sync
        config = TrainingConfig(
            train_batch_size=batch_size,
            eval_batch_size=batch_size,
            num_train_steps=10,
            **self.settings,
        )
        task = TASKS[self.task](
            self.config, self.max_seq_length, **self.options
        )
        with tempfile.TemporaryDirectory() as folder:
            estimator = Estimator(task, strategy, config, folder)
            make_data = self._data(task.schema, config, folder)
            if self.kind == "training":
                batches = estimator.training_batches(make_data)
                replica_step = estimator.training_step().replica_step
            else:
                batches = estimator.evaluation_batches(make_data, batch_size)
                replica_step = estimator.prediction_step

        def step(batch):
            return tf.nest.map_structure(
                lambda value: strategy.experimental_local_results(value)[0],
                strategy.run(replica_step, (batch,)),
            )

        return tf.function(step).get_concrete_function(batches.element_spec)

    def lower(self, chips: int = 1) -> str:
        """The StableHLO of one chip among so many.

        One replica is traced, whatever `chips`: of several, each would have
        its variables in this machine's memory. Sums are over all.
        """
        traced = self.trace(tpu_graph.traceable_strategy())
        return tpu_compiler.lower(
            *tpu_graph.replica_function(traced, chips=chips)
        )

    def _data(
        self, of_task: Schema, config: TrainingConfig, folder: str
    ) -> _MakeData:
        """What the script hands to the estimator, on a TPU."""
        if self.task.endswith("pretraining"):
            return self._pretraining_data(of_task, config, folder)
        features = buckets.in_memory(
            [_examples(of_task, self.batch_size)], of_task
        )
        padding = buckets.Padding(static=True)
        if self.kind == "training":
            return fine_tuning.training_data(features, padding, config)
        return fine_tuning.evaluation_data(features, padding)

    def _pretraining_data(
        self, of_task: Schema, config: TrainingConfig, folder: str
    ) -> _MakeData:
        path = os.path.join(folder, "records")
        with records.RecordWriter(path) as writer:
            writer.write_all(
                list(records.encode_batch(of_task, _examples(of_task, 1)))
            )
        arguments = {
            "vocab_size": self.config.vocab_size,
            "packing": SequencePacking()
            if self.task.startswith("packed")
            else None,
        }
        if self.kind == "training":
            arguments["seed"] = config.random_seed
            make = pipeline.training_dataset
        else:
            make = pipeline.evaluation_dataset
        return functools.partial(make, [path], of_task, **arguments)


def _examples(of_task: Schema, count: int) -> dict[str, np.ndarray]:
    """Examples of ones: what they hold decides nothing here."""
    return {
        feature.name: np.ones((count, *feature.shape), feature.dtype)
        for feature in of_task
    }
