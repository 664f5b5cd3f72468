"""The interface of tasks: what the training loop asks of them."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from bert_tf.config import BertConfig
from bert_tf.data.schema import Schema
from bert_tf.modeling import checkpoint_variables


class Task(abc.ABC):
    """Everything specific to one kind of task.

    The training loop knows nothing about BERT: it asks the task for a model,
    for the loss of each example and for the predictions to keep.

    Losses are weighted means over the *global* batch, on whatever device or in
    whatever micro-batch an example is. A task therefore returns values and
    weights of each example separately: the loop divides by the sum of the
    weights of the whole batch.

    `features` is a batch of records, a dict from name to tensor [B, ...], and
    `outputs` is what the model returns for it.
    """

    # Variables that an `init_checkpoint` may lack, as a regular expression: a
    # new head is trained from scratch, and so is a missing pooler. A missing
    # variable of the encoder is an error.
    new_variables: str = r"(?!bert/(embeddings|encoder)/)"

    @property
    @abc.abstractmethod
    def schema(self) -> Schema:
        """The schema of the records."""

    @property
    @abc.abstractmethod
    def loss_names(self) -> tuple[str, ...]:
        """The names of the parts of the loss, in the order of `losses`."""

    @abc.abstractmethod
    def build_model(self) -> keras.Model:
        """Returns a built model with random weights."""

    def checkpoint_variables(
        self, model: keras.Model
    ) -> dict[str, keras.Variable]:
        """Returns the weights of a model by their names in a checkpoint."""
        return checkpoint_variables(model)

    @abc.abstractmethod
    def loss_weights(self, features: Mapping) -> dict:
        """Returns the weight of each example in each part of the loss.

        Returns:
          Dict with the keys `loss_names`, floats [B].
        """

    @abc.abstractmethod
    def losses(self, features: Mapping, outputs: Mapping) -> dict:
        """Returns the weighted loss of each example.

        Returns:
          Dict with the keys `loss_names`, float32 [B]. A part's mean is
          its sum over all examples, divided by the sum of their weights; the
          training loss is the sum of the means.
        """

    @abc.abstractmethod
    def predictions(self, features: Mapping, outputs: Mapping) -> dict:
        """Returns what to keep of a batch: tensors [B, ...] by name."""

    @abc.abstractmethod
    def score(self, predictions: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Returns the metrics of a data set by name.

        Args:
          predictions: The joined results of `predictions`, each example once,
            [n, ...].
        """


class FineTuningTask(Task):
    """A task with a new head on a pre-trained encoder.

    Args:
      config: The configuration of the model.
      schema: The schema of the records.
      labels: The names in the order of the logits, if it has labels.
      frozen_layers: See `BertModel`.
      gradient_checkpointing: See `BertModel`.
      bilstm_head: See `heads.HeadModel`.
      head_options: Further keyword arguments of the model.

    Attributes:
      bilstm_head: The argument.
      head: The name of the kind of head in checkpoints.
      problem_type: The name of the problem in checkpoints, if it has one.
      unused_variables: Variables without effect, as a regular expression;
        models from elsewhere may lack them.
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
        """Returns the model with its head, not built."""
