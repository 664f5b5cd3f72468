"""Keras's callbacks and progress bar around the batches of texts."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import keras

from bert_tf import start_tensorflow
from bert_tf.config import positive_integer
from bert_tf.errors import wrong_value
from bert_tf.text_models.batches import StepArguments

# With verbose="auto", this number of batches or fewer has no progress bar.
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
      is_whole: Whether the first `run` gets all batches, so that their number
        is known.
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
        self._callbacks: keras.callbacks.CallbackList | None = None
        self._num_done = 0

    def run(
        self, call: Callable, batches: Sequence[Any] | Iterator[Any]
    ) -> Iterator[Any]:
        """Yields the result of `call` for each batch."""
        if self._callbacks is None:
            size = len(batches) if isinstance(batches, Sequence) else None
            self._begin(size if self._is_whole else None)
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


# Evaluates a model; the callbacks get the events of Keras's `evaluate`.
Evaluate = Callable[[keras.callbacks.CallbackList], dict[str, Any]]


class Epochs(keras.callbacks.Callback):
    """Starts and ends epochs of data sets, and releases unused memory once."""

    # Keras need not wait for the loss of each step.
    async_safe = True

    def __init__(self, batches: StepArguments, data: Any):
        super().__init__()
        self._batches = batches
        self._data = data
        self._is_released = False

    def on_epoch_begin(self, epoch, logs=None):
        self._batches.set_epoch(epoch)

    def on_epoch_end(self, epoch, logs=None):
        if isinstance(self._data, keras.utils.PyDataset):
            self._data.on_epoch_end()

    def on_train_batch_end(self, batch, logs=None):
        if not self._is_released:
            # Building and compiling the first step leaves gaps in the heap.
            start_tensorflow.release_memory()
            self._is_released = True


class Validation(keras.callbacks.Callback):
    """Evaluates a model after epochs, and adds the scores to their logs.

    Args:
      evaluate: Returns the scores by name.
      frequency: See `validation_freq` of Keras's `fit`.

    Attributes:
      callbacks: All callbacks of `fit`.

    Raises:
      InputError: If `frequency` is neither a positive integer nor a list of
        them.
    """

    callbacks: keras.callbacks.CallbackList

    def __init__(self, evaluate: Evaluate, frequency: Any = 1):
        super().__init__()
        self._evaluate = evaluate
        is_one = isinstance(frequency, str) or not isinstance(
            frequency, Collection
        )
        epochs = [
            positive_integer("validation_freq", number)
            for number in ([frequency] if is_one else frequency)
        ]
        self._frequency = epochs[0] if is_one else epochs
        self._logs: dict[str, Any] = {}

    def on_epoch_end(self, epoch, logs=None):
        """See Keras."""
        self._logs = {}
        number, every = epoch + 1, self._frequency
        if number % every if isinstance(every, int) else number not in every:
            return
        # On JAX, this stores the state of the training in the model.
        _ = self.model
        scores = self._evaluate(self.callbacks)
        self._logs = {f"val_{name}": scores[name] for name in sorted(scores)}
        logs.update(self._logs)

    def on_train_end(self, logs=None):
        """See Keras, which passes the logs of the last epoch."""
        logs.update(self._logs)
