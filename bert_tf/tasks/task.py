"""The interface of tasks: what the training loop asks of them."""

import abc
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from bert_tf.config import BertConfig
from bert_tf.data.schema import Schema
from bert_tf.tasks.encoding import TextEncoding
from bert_tf.variables import checkpoint_variables


class Task(abc.ABC):
    """Everything specific to one kind of task.

    Losses are weighted means over the *global* batch, on whatever device or in
    whatever micro-batch an example is. A task therefore returns the weighted
    loss and the weight of each example: the loop divides the sum of the losses
    of the whole batch by the sum of the weights.

    `features` is a batch of records, a dict from name to tensor [B, ...], and
    `outputs` is what the model returns for it.

    Attributes:
      schema: The schema of the records.
      loss_names: The names of the parts of the loss, in the order of `losses`.
      new_variables: Variables that an `init_checkpoint` may lack, as a regular
        expression: a new head is trained from scratch, and so are LoRA adapters
        and a missing pooler. A missing variable of the encoder is an error.
      unused_variables: Variables without effect on scores, as a regular
        expression; models from elsewhere may lack them.
      lora_rank: The rank of LoRA adapters; None to train all weights.
      lora_alpha: See `FeatureModel.enable_lora`.
    """

    schema: Schema
    loss_names: tuple[str, ...]
    new_variables: str = r"(?!bert/(embeddings|encoder)/)|.*/lora_kernel_[ab]$"
    unused_variables: str = r"(?!)"  # None.
    lora_rank: int | None = None
    lora_alpha: float | None = None

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

        The keys are `loss_names`, the values floats [B].
        """

    @abc.abstractmethod
    def losses(self, features: Mapping, outputs: Mapping) -> dict:
        """Returns the weighted loss of each example.

        The keys are `loss_names`, the values float32 [B]. The training loss is
        the sum of the weighted means of the parts.
        """

    @abc.abstractmethod
    def predictions(self, features: Mapping, outputs: Mapping) -> dict:
        """Returns what to keep of a batch: tensors [B, ...] by name."""

    @abc.abstractmethod
    def score(self, predictions: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Returns the metrics of a data set by name.

        The argument has the joined results of the method `predictions`, each
        example once, [n, ...].
        """


class FineTuningTask(Task):
    """A task with a new head on a pre-trained encoder.

    Args:
      config: The configuration of the model.
      encoding: How examples become features.
      bilstm_head: See `heads.HeadModel`.
      options: Further keyword arguments of the model: `frozen_layers`,
        `gradient_checkpointing` and options of the head.

    Attributes:
      head: The kind of head, one of `interop.checkpoint.HEADS`.
      problem_type: The name of the problem in checkpoints, if it has one.
      labels: The names in the order of the logits; () if it has no labels.
    """

    head: str
    problem_type: str | None = None

    def __init__(
        self,
        config: BertConfig,
        encoding: TextEncoding,
        *,
        bilstm_head: bool = False,
        **options: Any,
    ):
        self.config = config
        self.encoding = encoding
        self.bilstm_head = bilstm_head
        self.labels = tuple(getattr(encoding, "labels", ()))
        self.schema = encoding.schema
        self._model_options = {"bilstm_head": bilstm_head, **options}

    def build_model(self) -> keras.Model:
        model = self.make_model(**self._model_options)
        model.build()
        if self.lora_rank:
            model.enable_lora(self.lora_rank, lora_alpha=self.lora_alpha)
        return model

    @abc.abstractmethod
    def make_model(self, **options: Any) -> keras.Model:
        """Returns the model with its head, not built."""
