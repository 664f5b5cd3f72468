"""Answers and scores of a text model, in batches of similar length."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from bert_tf.checkpoints.keras_files import warn_if_random
from bert_tf.config import positive_integer
from bert_tf.data.batching import Features
from bert_tf.errors import wrong_value
from bert_tf.tasks.distillation import only_labeled
from bert_tf.tasks.task import FineTuningTask, Rows, as_numpy
from bert_tf.text_models.batches import (
    EvaluationBatches,
    build_state,
    in_32_bits,
    num_replicas,
    scope_of,
    weighted_features,
)
from bert_tf.text_models.inputs import (
    Part,
    is_dataset,
    require_data,
    texts_of,
)

# With verbose="auto", there is no progress bar for so few batches.
_BATCHES_WITHOUT_BAR = 8


def callbacks_of(callbacks: Any) -> Any:
    """Returns a `CallbackList` as it is, or a list of callbacks.

    Raises:
      InputError: If one is not an instance of Keras's class.
    """
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    flat = keras.tree.flatten(callbacks)
    for callback in flat:
        if not isinstance(callback, keras.callbacks.Callback):
            raise wrong_value(
                "callbacks",
                "a keras.callbacks.Callback, or a list of them",
                callbacks,
            )
    return flat


class Progress:
    """Calls Keras's callbacks, and shows its progress bar.

    Args:
      model: The model that is passed to the callbacks.
      phase: "predict" or "test": which methods of the callbacks are called.
      callbacks: A callback of Keras, a list of them or a `CallbackList`.
      verbose: As in Keras; "auto" is 1 if there are many batches.
      is_whole: Whether the first `run` gets all batches, as for a list.
    """

    def __init__(
        self,
        model: keras.Model,
        phase: str,
        callbacks: Any = None,
        verbose: Any = 0,
        is_whole: bool = True,
    ):
        self._model = model
        self._phase = phase
        self._verbose = verbose
        self._is_whole = is_whole
        self._user_callbacks = callbacks_of(callbacks or [])
        self.options = {"verbose": verbose, "callbacks": self._user_callbacks}
        self._callbacks: keras.callbacks.CallbackList | None = None
        self._num_done = 0

    def run(self, call: Callable, batches: Sequence[Any]) -> Iterator[Any]:
        """Yields the result of `call` for each batch."""
        if self._callbacks is None:
            self._begin(len(batches) if self._is_whole else None)
        for batch in batches:
            self._on("batch_begin", self._num_done)
            outputs = call(batch)
            logs = {"outputs": outputs} if self._phase == "predict" else {}
            self._on("batch_end", self._num_done, logs)
            self._num_done += 1
            yield outputs

    def end(self, logs: dict[str, Any] | None = None) -> None:
        """Ends the phase, if it has begun; the progress bar shows `logs`."""
        if self._callbacks is not None:
            self._on("end", logs or {})

    def _begin(self, total: int | None) -> None:
        verbose = self._verbose
        if verbose == "auto":
            verbose = int(total is None or total > _BATCHES_WITHOUT_BAR)
        if isinstance(self._user_callbacks, keras.callbacks.CallbackList):
            self._callbacks = self._user_callbacks
        else:
            self._callbacks = keras.callbacks.CallbackList(
                self._user_callbacks,
                add_progbar=verbose != 0,
                verbose=verbose,
                epochs=1,
                steps=total,
                model=self._model,
            )
        self._on("begin")

    def _on(self, event: str, *arguments: Any) -> None:
        getattr(self._callbacks, f"on_{self._phase}_{event}")(*arguments)


class CompiledCall:
    """Calls a model with features, int32 [b, ..., S].

    On TensorFlow, Keras's `predict_on_batch` would trace a graph for several
    shapes and log warnings of retracing.

    Args:
      model: The model.
      names: The features that it takes in predictions.
    """

    def __init__(self, model: keras.Model, names: Sequence[str]):
        self._model = model
        self._names = names
        self._key: list[int] = []
        self._graph: Callable = lambda **features: None

    def __call__(self, batch: Mapping[str, np.ndarray]) -> Any:
        features = {name: batch[name] for name in self._names}
        if keras.backend.backend() != "tensorflow":
            return self._model.predict_on_batch(features)
        import tensorflow as tf

        if tf.config.functions_run_eagerly():
            return self._model(features, training=False)
        rank = features["input_ids"].ndim
        # Adapters and quantization change the variables, and so the graph.
        key = [rank, *map(id, self._model.variables)]
        if self._key != key:
            function = tf.function(
                lambda batch: self._model(batch, training=False),
                autograph=False,
            )
            spec = tf.TensorSpec([None] * rank, tf.int32)
            specs = dict.fromkeys(self._names, spec)
            # For one text, a `tf.function` takes 0.4 ms to find its graph.
            self._graph = function.get_concrete_function(specs)
            self._key = key
        return self._graph(
            {name: tf.convert_to_tensor(x) for name, x in features.items()}
        )


def outputs_of_rows(
    model: Any,
    features: Features,
    batch_size: int,
    compute: Callable[[Mapping, Mapping], dict[str, Any]],
    progress: Progress,
) -> dict[str, np.ndarray]:
    """Returns what a task computes for each row, [n, ...] by name.

    Sizes that differ between batches are padded with zeros.

    Args:
      model: The text model.
      features: The rows.
      batch_size: Batch size for rows of `max_seq_length`.
      compute: A method of the task, such as `predictions`: maps a batch of
        features and the outputs of the model to tensors by name.
      progress: Runs the model.
    """
    warn_if_random(model.model)
    batches = EvaluationBatches(features, batch_size)

    def run(rows: np.ndarray) -> dict[str, np.ndarray]:
        batch = batches.batch(rows)
        found: Any = batch, model._outputs_of_task(model._call(batch))
        if keras.backend.backend() == "torch":
            # On PyTorch, Keras returns arrays, but `compute` needs tensors.
            found = keras.tree.map_structure(ops.convert_to_tensor, found)
        return keras.tree.map_structure(ops.convert_to_numpy, compute(*found))

    parts = [*progress.run(run, batches.rows)]
    order = np.argsort(np.concatenate(batches.rows))
    return {
        name: _concatenated([part[name] for part in parts])[order]
        for name in parts[0]
    }


def _concatenated(parts: Sequence[np.ndarray]) -> np.ndarray:
    most = np.max([x.shape[1:] for x in parts], axis=0).astype(int)
    return np.concatenate(
        [
            np.pad(x, [(0, 0), *((0, n) for n in most - x.shape[1:])])
            for x in parts
        ]
    )


def predict(
    model: Any,
    x: Any,
    batch_size: int,
    verbose: Any,
    steps: int | None,
    callbacks: Any,
    **options: Any,
) -> Any:
    """Returns the answers for several texts, or the answer for one.

    See `TextModel.predict`; `options` are further arguments of `answers`.
    """
    positive_integer("batch_size", batch_size)
    require_data(Part(x), "steps", steps)
    is_one = model._is_single(x)
    is_whole = is_one or not is_dataset(x)
    progress = Progress(model, "predict", callbacks, verbose, is_whole)
    parts = [x] if is_one else texts_of(x, batch_size, steps, model.is_pair)
    found = [
        answer
        for part in parts
        for answer in answers(model, part, batch_size, progress, **options)
    ]
    progress.end()
    return found[0] if is_one else found


def answers(
    model: Any,
    x: Any,
    batch_size: int,
    progress: Progress,
    task: FineTuningTask | None = None,
    **options: Any,
) -> Any:
    """Returns the answers for several texts.

    Args:
      model: The text model.
      x: The texts.
      batch_size: Batch size for rows of `max_seq_length`.
      progress: Runs the model.
      task: By default `make_task()` of the model.
      options: Further arguments of `examples` of the model.
    """
    task = task or model.make_task()
    examples = model.examples(x, None, **options)
    features = task.encoding.features(examples)
    outputs = outputs_of_rows(
        model, features, batch_size, task.row_outputs, progress
    )
    rows = Rows(features.arrays["example_index"], len(examples))
    decoded = as_numpy(task.decode(task.join(outputs, rows)))
    return task.answers(decoded, examples)


def scores(
    model: Any,
    data: Part,
    batch_size: int,
    progress: Progress,
    features: Features | None = None,
) -> dict[str, Any]:
    """Returns the scores that the scripts report for the answers.

    If the model `_compares_examples`, Keras's loss and metrics are added.

    Args:
      model: The text model.
      data: Texts, labels and weights.
      batch_size: Batch size for rows of `max_seq_length`.
      progress: Runs the model.
      features: The `weighted_features` of the data, if they are known.
    """
    task, examples = model.make_task(), []
    if not model._compares_examples:
        examples = model._labelled(data.x, data.y)
        features = task.encoding.features(examples)
    elif features is None:
        features = weighted_features(model, data)
    rows = outputs_of_rows(
        model, features, batch_size, task.predictions, progress
    )
    predictions = task.of_examples(rows)
    scores = {
        name.removeprefix("eval_"): value
        for name, value in task.score(predictions, examples).items()
    }
    if not model._compares_examples:
        return scores
    arrays = features.arrays
    if "window_numbers" in arrays:
        is_first = arrays["window_numbers"] == 0
        arrays = {name: x[is_first] for name, x in arrays.items()}
        arrays.pop("num_windows")
    (x, y, weights), outputs = keras.tree.map_structure(
        ops.convert_to_tensor,
        (model._arguments(False, in_32_bits(arrays)), predictions["logits"]),
    )
    model.reset_metrics()
    loss = model.compute_loss(x, y, outputs, weights, training=False)
    found = model.compute_metrics(x, y, outputs, weights)
    found["loss"] = loss * num_replicas()
    for name, value in found.items():
        values = ops.convert_to_numpy(value)
        # Some metrics have a result for each label.
        scores[name] = values if values.ndim else float(values)
    return scores


def keras_scores(
    model: Any, features: Features, batch_size: int, **options: Any
) -> dict[str, Any]:
    """Returns the loss and the metrics that Keras computes from rows."""
    arguments = functools.partial(model._arguments, False)
    batches = EvaluationBatches(features, batch_size, arguments)
    with scope_of(model):
        if num_replicas() > 1:
            build_state(model, batches.example())
    data = batches.for_backend()
    return keras.Model.evaluate(model, data, return_dict=True, **options)


def validation(
    model: Any, data: Part, batch_size: int
) -> Callable[[Any], dict[str, Any]]:
    """Returns the function that evaluates after an epoch of `fit`.

    The function takes Keras's callbacks, and returns the loss, the metrics and
    the scores of answers.
    """
    features = only_labeled(weighted_features(model, data))

    def validate(callbacks: Any) -> dict[str, Any]:
        found = {}
        if not model._compares_examples:
            options = {"verbose": 0, "callbacks": callbacks}
            found = keras_scores(model, features, batch_size, **options)
            callbacks = None
        progress = Progress(model, "test", callbacks)
        scores = model._scores(data, batch_size, progress, features)
        progress.end(scores)
        return {**scores, **found}

    return validate
