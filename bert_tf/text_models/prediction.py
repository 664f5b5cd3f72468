"""`PredictingTextModel`: Keras's `predict` for texts instead of tensors."""

import abc
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np

from bert_tf.checkpoints.keras_files import warn_if_random
from bert_tf.config import positive_integer
from bert_tf.data.batching import Features
from bert_tf.data.schema import INPUTS
from bert_tf.errors import InputError
from bert_tf.modeling.feature_model import TrainableModel
from bert_tf.tasks.examples import Example
from bert_tf.tasks.task import FineTuningTask, Rows, as_numpy
from bert_tf.text_models.batches import (
    ONLY_IN_BATCHES,
    for_evaluation,
    in_32_bits,
    num_replicas,
    stacked,
)
from bert_tf.text_models.inputs import (
    Part,
    as_columns,
    equally_long,
    is_dataset,
    is_single,
    parts_of,
    plain,
    require_as_many_labels,
    require_data,
    require_present,
    rows_of,
    whole,
)
from bert_tf.text_models.label_metrics import targets_of
from bert_tf.text_models.progress import Progress

# How many texts of a data set are shuffled and tokenized at a time.
TEXTS_AT_A_TIME = 10_000


class PredictingTextModel(TrainableModel, abc.ABC):
    """What `TextModel` adds to Keras's `predict`, for all kinds of models."""

    # Whether `fit` and `evaluate` need `y`.
    _needs_labels: ClassVar[bool] = True
    # Whether Keras's loss and metrics compare the logits of examples, which
    # `join` of the task returns: one pass over the data gives all scores.
    _compares_examples: ClassVar[bool] = False
    # Whether two strings of a data set are a pair.
    is_pair = False
    # The features that the model takes in predictions.
    _inputs = INPUTS

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self._compiled_call: tuple[Any, Callable] | None = None

    # What each kind of model defines.

    @abc.abstractmethod
    def make_task(self, **options: Any) -> FineTuningTask:
        """Returns the task of the model.

        Args:
          **options: Further arguments of the task, such as `class_weights`.
        """

    def _outputs_of_task(self, y_pred: Any) -> dict[str, Any]:
        """Returns the results of `call` by the task's names."""
        return {"logits": y_pred}

    def examples(self, x: Any, y: Any) -> list[Any]:
        """Returns the examples that the encoding of the task takes.

        Args:
          x: Texts or pairs of texts, in any of the forms that `fit` takes.
          y: Their labels, or None.

        Raises:
          InputError: There are no texts, or not as many labels as texts.
        """
        columns = as_columns(x, ("text_a", "text_b"))
        if not columns[0]:
            raise InputError("There are no texts.")
        labels = [None] * len(columns[0]) if y is None else plain(y)
        require_as_many_labels(labels, len(columns[0]))
        if y is not None:
            require_present(labels, "example", "label")
        return [
            Example(str(number), *texts, label=label, where=f"example {number}")
            for number, (label, *texts) in enumerate(
                zip(labels, *columns, strict=True)
            )
        ]

    def _features_of(
        self, examples: Sequence[Any], task: FineTuningTask | None = None
    ) -> Features:
        """Returns the rows of examples, of a task that is made by default."""
        return (task or self.make_task()).encoding.features(examples)

    def _answers(
        self,
        x: Any,
        batch_size: int,
        progress: Progress,
        task: FineTuningTask | None = None,
        **options: Any,
    ) -> Any:
        """Returns the answers for several texts.

        `task` is `make_task()` by default. `options` are further arguments of
        `examples`.
        """
        task = task or self.make_task()
        examples = self.examples(x, None, **options)
        features = self._features_of(examples, task)
        outputs = self._results(
            features, batch_size, task.row_outputs, progress
        )
        rows = Rows(features.arrays["example_index"], len(examples))
        decoded = as_numpy(task.decode(task.join(outputs, rows)))
        return task.answers(decoded, examples)

    def _features(self, x: Any, y: Any) -> Features:
        """Returns the features of texts `x`, with labels unless `y` is None."""
        return self._features_of(self._labelled(x, y))

    def _labelled(self, x: Any, y: Any) -> list[Any]:
        """Returns examples to train or to evaluate on."""
        return self.examples(x, y)

    def _targets(self, batch: Mapping[str, np.ndarray]) -> Any:
        """Returns what Keras's own losses and metrics compare with `call`."""
        num_classes = len(self._class_names())
        return targets_of(self.loss, batch["label_ids"], num_classes)

    def _drawn(
        self, batch: Mapping[str, np.ndarray], is_training: bool
    ) -> Mapping[str, np.ndarray]:
        """Returns a batch with random changes for this step, such as masks."""
        return batch

    def _has_one_row(self) -> bool:
        """Returns whether each text has one row of features."""
        return True

    def _class_names(self) -> Sequence[str]:
        """Returns the class names for single-label targets, else ()."""
        return ()

    def _label_ids(self, features: Features) -> np.ndarray:
        """Returns the label id of each text or word, [n]."""
        return features.arrays["label_ids"]

    def _scores(
        self, x: Any, y: Any, batch_size: int, progress: Progress
    ) -> dict[str, float]:
        """Returns the scores that the scripts report for the answers."""
        task, examples = self.make_task(), self._labelled(x, y)
        features = self._features_of(examples)
        predictions = self._results(
            features, batch_size, task.predictions, progress
        )
        scores = task.score(task.of_examples(predictions), examples)
        return {n.removeprefix("eval_"): score for n, score in scores.items()}

    def _arguments(
        self, is_training: bool, batch: Mapping[str, np.ndarray]
    ) -> tuple:
        """Returns the features, targets and weights of the rows of a step."""
        batch = self._drawn(batch, is_training)
        features = {n: x for n, x in batch.items() if n not in ONLY_IN_BATCHES}
        ones = np.ones(len(batch["input_ids"]), np.float32)
        weights = batch.get("sample_weight", ones)
        return features, self._targets(batch), weights

    def _scores_of_examples(
        self, features: Features, batch_size: int, progress: Progress
    ) -> dict[str, Any]:
        """Returns the loss, Keras's metrics and the scores of the scripts.

        All of them compare examples, not their windows.
        """
        task = self.make_task()
        rows = self._results(features, batch_size, task.predictions, progress)
        predictions = task.of_examples(rows)
        arrays = features.arrays
        if "window_numbers" in arrays:
            is_first = arrays["window_numbers"] == 0
            arrays = {name: x[is_first] for name, x in arrays.items()}
            arrays.pop("num_windows")
        x, y, weights = keras.tree.map_structure(
            keras.ops.convert_to_tensor,
            self._arguments(False, in_32_bits(arrays)),
        )
        outputs = keras.ops.convert_to_tensor(predictions["logits"])
        self.reset_metrics()
        loss = self.compute_loss(x, y, outputs, weights, training=False)
        found = self.compute_metrics(x, y, outputs, weights)
        found["loss"] = loss * num_replicas()
        scores = {
            name.removeprefix("eval_"): value
            for name, value in task.score(predictions).items()
        }
        for name, value in found.items():
            values = keras.ops.convert_to_numpy(value)
            # A metric may have a result for each label.
            scores[name] = values if values.ndim else float(values)
        progress.end(scores)
        return scores

    def _default_metrics(self) -> Any:
        return None

    def _joined(self, parts: Sequence[Any]) -> Any:
        """Returns the answers of all parts of the texts."""
        return [*itertools.chain.from_iterable(parts)]

    def _is_single(self, x: Any) -> bool:
        """Returns whether `x` is one text and not several."""
        return is_single(x)

    # Keras's method, and what other methods share.

    def predict(
        self,
        x: Any,
        batch_size: int = 32,
        verbose: Any = "auto",
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Any:
        """Returns the answer for each text; the class describes answers.

        Args:
          x: Texts, or a single one; or a `tf.data.Dataset` or a
            `keras.utils.PyDataset` of texts, which is read in parts. Its labels
            are ignored.
          batch_size: Batch size for texts of `max_seq_length`; batches of
            shorter texts are larger.
          verbose: Whether to show a progress bar, as in Keras; "auto" shows it
            if there are more than 8 batches.
          steps: Answers only the first `steps * batch_size` texts, or the first
            `steps` batches of a data set of batches.
          callbacks: A callback of Keras, or a list of them.
        """
        return self._predicted(
            x, batch_size, verbose, steps, callbacks, self._answers
        )

    def _predicted(
        self,
        x: Any,
        batch_size: int,
        verbose: Any,
        steps: int | None,
        callbacks: Any,
        answers: Callable[[Any, int, Progress], Any],
    ) -> Any:
        """Calls `answers` with texts, the batch size and the progress."""
        positive_integer("batch_size", batch_size)
        require_data(Part(x), "steps", steps)
        is_stream = is_dataset(x)
        progress = Progress(self, "predict", callbacks, verbose, not is_stream)
        if self._is_single(x):
            predicted = answers(x, batch_size, progress)
        elif is_stream:
            rows = rows_of(x, False, batch_size, steps, self.is_pair)
            parts = parts_of(rows, TEXTS_AT_A_TIME)
            predicted = self._joined(
                [answers(part.x, batch_size, progress) for part in parts]
            )
        elif not equally_long(Part(x))[1]:
            return self._joined([])
        else:
            x = whole(Part(x), False, batch_size, steps).x
            predicted = answers(x, batch_size, progress)
        progress.end()
        return predicted[0] if self._is_single(x) else predicted

    def _outputs(
        self,
        features: Features,
        batch_size: int,
        call: Callable,
        progress: Progress,
    ) -> list[np.ndarray]:
        """Returns the outputs of a function for each row, in order.

        Args:
          features: The rows.
          batch_size: Batch size for rows of `max_seq_length`.
          call: Maps a batch of features to an array, or a dict of them, [b,
            ...].
          progress: Runs the function.
        """
        warn_if_random(self.model)
        batches = for_evaluation(features, batch_size, tuple)
        by_row: list[Any] = [None] * len(features)

        def run(rows: np.ndarray) -> Any:
            batch = batches.gather(rows)
            outputs = call(batch)
            return keras.tree.map_structure(keras.ops.convert_to_numpy, outputs)

        results = progress.run(run, batches.rows)
        for rows, outputs in zip(batches.rows, results, strict=True):
            for position, row in enumerate(rows):
                by_row[row] = keras.tree.map_structure(
                    lambda x, position=position: x[position], outputs
                )
        return by_row

    def _results(
        self,
        features: Features,
        batch_size: int,
        compute: Callable[[Mapping, Mapping], dict[str, Any]],
        progress: Progress,
    ) -> dict[str, np.ndarray]:
        """Returns what a task computes for each row, [n, ...] by name.

        Args:
          features: The rows.
          batch_size: Batch size for rows of `max_seq_length`.
          compute: A method of the task, such as `predictions`: maps a batch of
            features and the outputs of the model to tensors by name.
          progress: Runs the model.
        """

        def call(batch: Mapping[str, np.ndarray]) -> dict[str, Any]:
            found = batch, self._outputs_of_task(self._call(batch))
            # Keras returns arrays on PyTorch.
            convert = keras.ops.convert_to_tensor
            return compute(*keras.tree.map_structure(convert, found))

        return stacked(self._outputs(features, batch_size, call, progress))

    def _call(self, batch: Mapping[str, np.ndarray]) -> Any:
        """Calls the model with the `_inputs` of a batch, int32 [b, ..., S].

        On TensorFlow, Keras's `predict_on_batch` would trace a graph for each
        of the first shapes and log warnings.
        """
        features = {name: batch[name] for name in self._inputs}
        if keras.backend.backend() != "tensorflow":
            return self.predict_on_batch(features)
        import tensorflow as tf

        if tf.config.functions_run_eagerly():
            return self(features, training=False)
        rank = features["input_ids"].ndim
        # Adapters and quantization change the variables, and so the graph.
        key = [rank, *map(id, self.variables)]
        if self._compiled_call is None or self._compiled_call[0] != key:
            self._compiled_call = key, self._traced_call(rank)
        return self._compiled_call[1](features)

    def _traced_call(self, rank: int) -> Callable:
        """Returns `call` as a function of `_inputs`, int32 [b, ...]."""
        import tensorflow as tf

        function = tf.function(
            lambda batch: self(batch, training=False), autograph=False
        )
        spec = tf.TensorSpec([None] * rank, tf.int32)
        spec = dict.fromkeys(self._inputs, spec)
        # For one text, a `tf.function` takes 0.4 ms to find its graph.
        concrete = function.get_concrete_function(spec)
        return lambda batch: concrete(
            {name: tf.convert_to_tensor(batch[name]) for name in self._inputs}
        )
