"""The contract between a kind of task and everything that serves it."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from bert_tf.config import BertConfig
from bert_tf.data.schema import Schema
from bert_tf.modeling import checkpoint_variables


class Task(abc.ABC):
    """All that is particular to one kind of task.

    The training loop knows nothing about BERT: it asks the task for a model,
    for the loss of each example and for what to keep of a batch of outputs.

    Losses are weighted means over the *global* batch, whatever device or
    micro-batch an example lands on. A task therefore names the weights apart
    from the values, per example: the loop sums the weights of the whole batch
    first and divides by that sum.

    `features` are a batch of records, a dict from name to tensor [B, ...];
    `outputs` what the model returns for them.
    """

    # Variables that an `init_checkpoint` may lack, as a regular expression: a
    # new head is trained from scratch, and so is the pooler of models that
    # had none; half an encoder is a mistake.
    new_variables: str = r"(?!bert/(embeddings|encoder)/)"

    @property
    @abc.abstractmethod
    def schema(self) -> Schema:
        """What its records hold."""

    @property
    @abc.abstractmethod
    def loss_names(self) -> tuple[str, ...]:
        """The parts of the loss, in the order of `losses`."""

    @abc.abstractmethod
    def build_model(self) -> keras.Model:
        """A built model with random weights."""

    def checkpoint_variables(
        self, model: keras.Model
    ) -> dict[str, keras.Variable]:
        """The model's weights by their names in a checkpoint."""
        return checkpoint_variables(model)

    @abc.abstractmethod
    def loss_weights(self, features: Mapping) -> dict:
        """The weight of each example in each part of the loss.

        Returns:
          Dict with the keys `loss_names`, floats [B].
        """

    @abc.abstractmethod
    def losses(self, features: Mapping, outputs: Mapping) -> dict:
        """The weighted loss of each example, part by part.

        Returns:
          Dict with the keys `loss_names`, float32 [B]. A part's mean is
          its sum over all examples, divided by the sum of their weights; the
          training loss is the sum of the means.
        """

    @abc.abstractmethod
    def predictions(self, features: Mapping, outputs: Mapping) -> dict:
        """What to keep of a batch: dict from name to a tensor [B, ...]."""

    @abc.abstractmethod
    def score(self, predictions: Mapping[str, np.ndarray]) -> dict[str, float]:
        """The metrics of a data set.

        Args:
          predictions: What `predictions` kept, each example once, [n, ...].

        Returns:
          Dict from the metric's name, the original's where it has one.
        """


class FineTuningTask(Task):
    """What all tasks share that put a new head on an encoder.

    Args:
      config: The model to train.
      schema: Of its records.
      labels: Their names, in the order of the logits, where it has labels.
      frozen_layers: See `BertModel`.
      gradient_checkpointing: See `BertModel`.
      bilstm_head: See `heads.TaskModel`.
      head_options: What else the model with its head takes by name.

    Attributes:
      bilstm_head: As it was given.
      head: The kind of its head, as checkpoints know it.
      problem_type: What checkpoints call its problem, if they do.
      unused_variables: Those that decide nothing, as a regular expression: a
        trained model of others may lack them.
    """

    head: str
    problem_type: str | None = None
    unused_variables: str = r"(?!)"

    def __init__(
        self,
        config: BertConfig,
        schema: Schema,
        labels: Sequence[str] = (),
        *,
        frozen_layers: Sequence[str] = (),
        gradient_checkpointing: bool = False,
        bilstm_head: bool = False,
        **head_options: Any,
    ):
        self.config = config
        self.bilstm_head = bilstm_head
        self.labels = tuple(labels)
        self._schema = schema
        self._model_options = {
            "frozen_layers": frozen_layers,
            "gradient_checkpointing": gradient_checkpointing,
            "bilstm_head": bilstm_head,
            **head_options,
        }

    @property
    def schema(self) -> Schema:
        return self._schema

    def build_model(self) -> keras.Model:
        model = self.make_model(**self._model_options)
        model.build()
        return model

    @abc.abstractmethod
    def make_model(self, **options: Any) -> keras.Model:
        """The model with its head, not built; `options` are its keywords."""
