"""`fit` of text models: its data, optimizer, callbacks and teacher."""

import dataclasses
import functools
import inspect
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np

from bert_tf import start_tensorflow
from bert_tf.base.options import number_fault
from bert_tf.checkpoints.checkpoint import have_names
from bert_tf.checkpoints.conversion import as_checkpoint
from bert_tf.checkpoints.pretrained import open_pretrained, require_options
from bert_tf.config import positive_integer, require_number
from bert_tf.data.batching import Features
from bert_tf.errors import InputError, wrong_value
from bert_tf.modeling.optimization import AdamWeightDecay, WarmupLinearDecay
from bert_tf.tasks.distillation import task_of_teacher, with_outputs
from bert_tf.tasks.task import FineTuningTask, balanced_class_weights
from bert_tf.text_models import predict
from bert_tf.text_models.batches import (
    TrainingBatches,
    build_state,
    inner_optimizer,
    require_count,
    scope_of,
    weighted_features,
)
from bert_tf.text_models.inputs import (
    TEXTS_AT_A_TIME,
    Part,
    class_weights,
    hold_out,
    is_dataset,
    parts_of,
    require_data,
    rows_of,
    whole,
)

# As in the original's scripts.
WARMUP_SHARE = 0.1
CLIP_NORM = 1.0

# The arguments of Keras's `fit`.
_KERAS_OPTIONS = {*inspect.signature(keras.Model.fit).parameters}

# The teacher's batch size for rows of `max_seq_length`.
_TEACHER_BATCH_SIZE = 32


def fit(
    self,
    x: Any,
    y: Any = None,
    batch_size: int = 32,
    epochs: int = 3,
    *,
    validation_data: Any = None,
    validation_split: float = 0.0,
    sample_weight: Any = None,
    class_weight: Mapping[Any, float] | str | None = None,
    initial_epoch: int = 0,
    callbacks: Any = None,
    seed: int = 0,
    steps_per_epoch: int | None = None,
    teacher: Any = None,
    distillation_weight: float | None = None,
    temperature: float | None = None,
    **options: Any,
) -> keras.callbacks.History:
    """Trains the model, like Keras's `fit`.

    Args:
      x: The texts, see the class; or a `tf.data.Dataset` or a
        `keras.utils.PyDataset` of texts and labels, and perhaps weights. A
        data set may be larger than the memory: its texts are read, shuffled
        and tokenized in parts.
      y: The labels, one for each text.
      batch_size: The number of rows of a step: texts, or windows of long ones.
      epochs: The number of passes over the data.
      validation_data: A tuple (x, y) or (x, y, sample_weight) to evaluate
        after each epoch; `x` alone for models that need no labels. Data
        sets are read into memory.
      validation_split: The fraction of the data, held out from its end, to
        use as validation data. A data set is then read into memory.
      sample_weight: The weight of each text in the loss, floats [n].
      class_weight: The weights of labels in the loss, by name or number;
        other labels have weight 1. As in Keras, the loss of a batch is
        the sum of weight times loss, divided by the number of its texts or
        words. "balanced": each label counts equally, n / (labels *
        count), as in scikit-learn.
      initial_epoch: The epoch to resume from, counted from 0. The default
        optimizer then keeps its state. A model loaded from a `.keras` file
        draws different dropout masks than an uninterrupted run, because the
        file does not contain the state of seed generators.
      callbacks: A callback of Keras, or a list of them.
      seed: Determines the order of the examples.
      steps_per_epoch: The number of steps of an epoch of a data set; the next
        epoch continues where this one ended. By default the steps are counted,
        and each epoch has every text once.
      teacher: A trained model of the same class, labels and tokens, or the
        path of its checkpoint: the model also learns from the teacher's
        outputs. Texts of a `TextClassifier` may then have no label: None
        or NaN in `y`, or no `y`. Keras's metrics compare those texts with
        the teacher's answers; validation ignores them. `CrossEncoder`,
        `TextEmbedder` and `MaskedWordPredictor` have no teachers.
      distillation_weight: The weight of the teacher's loss; the labels'
        loss has the weight 1 - distillation_weight. By default 0.9.
      temperature: A number from 0.1 to 100 that divides the logits in the
        teacher's loss. With higher values, the student learns more about
        how the teacher ranks incorrect answers. By default 2.
      **options: `verbose` and others of Keras's `fit`.

    Raises:
      InputError: If texts and labels do not fit each other or the model.
    """
    if "shuffle" in options:
        raise InputError(
            "fit does not accept shuffle: texts come in an order that depends "
            "on seed."
        )
    require_options("fit", options, _KERAS_OPTIONS)
    if not self.compiled:
        self.compile()
    try:
        self._teacher = _teacher_of(
            self,
            teacher,
            distillation_weight=distillation_weight,
            temperature=temperature,
        )
        data = Part(x, y, sample_weight)
        require_data(data, "steps_per_epoch", steps_per_epoch)
        positive_integer("batch_size", batch_size)
        positive_integer("epochs", epochs)
        require_count("initial_epoch", initial_epoch)
        steps = options.get("validation_steps")
        data, held_out = _divided(
            self, data, validation_data, validation_split, steps
        )
        added = _validation(self, held_out, batch_size, options)
        before = _loss_weights(self)
        batches = self._training_data(
            data, batch_size, seed, class_weight, steps_per_epoch
        )
        self.num_steps = len(batches) * epochs
        if self._peak_learning_rate is not None:
            _restart(self, self._peak_learning_rate, initial_epoch > 0)
        elif _loss_weights(self) != before:
            # The compiled step contains the old weights.
            self.train_function = None
        build_state(self, batches.example())
        added.append(Epochs(batches, x))
        options |= {"epochs": epochs, "initial_epoch": initial_epoch}
        return _run(self, batches, callbacks, added, **options)
    finally:
        self._teacher = None


def _loss_weights(model: Any) -> tuple:
    """Returns the weights of the classes and of the teacher in the loss."""
    task = model._training_task
    weights = getattr(task, "class_weights", None)
    classes = None if weights is None else tuple(np.ravel(weights))
    return classes, getattr(task, "teacher_loss", None)


def _validation(
    model: Any, held_out: Part | None, batch_size: int, options: dict[str, Any]
) -> list[keras.callbacks.Callback]:
    """Returns the validation of `fit`, if any; pops its `options`."""
    size = options.pop("validation_batch_size", None)
    size = batch_size if size is None else size
    steps = options.pop("validation_steps", None)
    frequency = options.pop("validation_freq", 1)
    if held_out is None:
        return []
    positive_integer("validation_batch_size", size)
    held_out = whole(held_out, model._needs_labels, size, steps)
    evaluate = predict.validation(model, held_out, size)
    return [Validation(evaluate, frequency)]


def _run(
    model: Any,
    batches: TrainingBatches,
    callbacks: Any,
    added: list[keras.callbacks.Callback],
    *,
    epochs: int,
    verbose: Any = "auto",
    **options: Any,
) -> keras.callbacks.History:
    """Runs Keras's `fit` with the user's and the `added` callbacks."""
    callbacks = keras.tree.flatten(predict.callbacks_of(callbacks or []))
    all_callbacks = keras.callbacks.CallbackList(
        # The validation is first, so that other callbacks see its scores.
        [*added, *callbacks],
        add_history=True,
        add_progbar=verbose != 0,
        verbose=verbose,
        epochs=epochs,
        steps=len(batches),
        model=model,
    )
    for callback in added:
        callback.callbacks = all_callbacks
    return keras.Model.fit(
        model,
        batches.for_backend(),
        epochs=epochs,
        callbacks=all_callbacks,
        verbose=verbose,
        # The rows are shuffled already.
        shuffle=False,
        **options,
    )


def _divided(
    model: Any, data: Part, validation_data: Any, share: float, steps: Any
) -> tuple[Part, Part | None]:
    """Returns the training data, and the validation data or None.

    Args:
      model: The text model.
      data: What `fit` gets.
      validation_data, share, steps: `validation_data`, `validation_split` and
        `validation_steps` of `fit`.
    """
    if validation_data is not None:
        held_out = Part.of(validation_data)
        require_data(held_out, "validation_steps", steps)
        has_y = held_out.y is not None or is_dataset(held_out.x)
        if model._needs_labels and not has_y:
            raise wrong_value(
                "validation_data",
                "a tuple (x, y) or (x, y, sample_weight)",
                validation_data,
            )
        return data, held_out
    if not share:
        return data, None
    # An endless data set has no last part.
    require_data(data, "validation_data", None)
    return hold_out(whole(data, model._needs_labels), share)


def training_batches(
    model: Any,
    data: Part,
    batch_size: int,
    seed: int,
    class_weight: Any,
    steps_per_epoch: int | None = None,
) -> TrainingBatches:
    """Returns the steps of all epochs, and sets the task of the training."""
    require_count("seed", seed)
    is_stream = is_dataset(data.x)
    if not is_stream and steps_per_epoch is not None:
        raise InputError(
            "steps_per_epoch is for a data set. Leave it out: an epoch has "
            "every text once."
        )
    if is_stream and isinstance(class_weight, str):
        raise InputError(
            f"class_weight={class_weight!r} needs all labels. With a data "
            "set, pass the weight of each label."
        )
    # With one row for each text, all batches but the last are whole.
    size = -(-TEXTS_AT_A_TIME // batch_size) * batch_size

    def encoded() -> Iterator[Features]:
        texts = parts_of(rows_of(data.x, model._needs_labels), size)
        return (weighted_features(model, part) for part in texts)

    names = model._class_names()
    in_memory = []
    model.usual_length = type(model).usual_length
    counts: Iterable[int] = ()
    if not is_stream:
        data = whole(data, model._needs_labels)
        features = model._to_learn(weighted_features(model, data))
        model.usual_length = round(features.lengths.mean())
        counts = [len(features)]
        in_memory.append(features)
        if isinstance(class_weight, str) and class_weight == "balanced":
            numbers = model._label_ids(features) if names else np.zeros(1, int)
            weights = balanced_class_weights(numbers, len(names))
            class_weight = dict(zip(names, weights, strict=False))
    elif steps_per_epoch is None:
        counts = map(len, encoded())
        if model._has_one_row():
            counts = [sum(1 for _ in rows_of(data.x))]
    num_steps = steps_per_epoch or sum(-(-n // batch_size) for n in counts)
    if not num_steps:
        raise InputError("There are no texts.")
    options = {}
    if class_weight is not None:
        options["class_weights"] = class_weights(class_weight, names)
    task = model.make_task(**options)
    if model._teacher is not None:
        task = model._teacher.task_of(task)
    model._training_task = task
    return TrainingBatches(
        lambda: in_memory or map(model._to_learn, encoded()),
        num_steps,
        batch_size,
        seed,
        functools.partial(model._arguments, True),
        is_endless=steps_per_epoch is not None,
    )


def default_optimizer(model: Any) -> AdamWeightDecay:
    """Returns the optimizer of the scripts, with the model's learning rate."""
    # `fit` replaces the schedule when it knows the number of steps.
    schedule = WarmupLinearDecay(model._peak_learning_rate, 1, 0)
    with scope_of(model):
        return AdamWeightDecay(schedule, global_clipnorm=CLIP_NORM)


def _restart(model: Any, peak: float, keep_state: bool) -> None:
    """Resets the default optimizer for a training of `model.num_steps`."""
    num_steps = model.num_steps
    model.optimizer.learning_rate = WarmupLinearDecay(
        peak, num_steps, math.floor(num_steps * WARMUP_SHARE)
    )
    # The compiled step contains the old schedule.
    model.train_function = None
    if keep_state:
        return
    # The variables of a LossScaleOptimizer keep their values: zeroing the
    # scale would zero every loss.
    for variable in inner_optimizer(model).variables:
        variable.assign(keras.ops.zeros(variable.shape, variable.dtype))


# Callbacks.


class Epochs(keras.callbacks.Callback):
    """Passes epochs to the data, and releases unused memory once."""

    # Keras need not wait for the loss of each step.
    async_safe = True

    def __init__(self, batches: TrainingBatches, data: Any):
        super().__init__()
        self._batches = batches
        self._data = data
        self._is_released = False

    def on_epoch_begin(self, epoch, logs=None):
        self._batches.epoch = epoch

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
      evaluate: Returns the scores by name, given the callbacks for the events
        of Keras's `evaluate`.
      frequency: See `validation_freq` of Keras's `fit`.

    Attributes:
      callbacks: All callbacks of `fit`.

    Raises:
      InputError: If `frequency` is neither a positive integer nor a list of
        them.
    """

    callbacks: keras.callbacks.CallbackList

    def __init__(self, evaluate: Any, frequency: Any = 1):
        super().__init__()
        self._evaluate = evaluate
        self._epochs = [
            positive_integer("validation_freq", number)
            for number in np.ravel(frequency).tolist()
        ]
        self._is_list = np.ndim(frequency) > 0
        self._logs: dict[str, Any] = {}

    def on_epoch_end(self, epoch, logs=None):
        """See Keras."""
        self._logs = {}
        number = epoch + 1
        is_due = number in self._epochs
        if not is_due and (self._is_list or number % self._epochs[0]):
            return
        # On JAX, this stores the state of the training in the model.
        _ = self.model
        scores = self._evaluate(self.callbacks)
        self._logs = {f"val_{name}": scores[name] for name in sorted(scores)}
        logs.update(self._logs)

    def on_train_end(self, logs=None):
        """Adds the last scores to the logs that Keras passes at the end."""
        logs.update(self._logs)


# Teachers.


def _teacher_of(model: Any, teacher: Any, **options: Any) -> "Teacher | None":
    """Returns the teacher of a `fit`, or None if there is none."""
    given = {name: x for name, x in options.items() if x is not None}
    if teacher is not None:
        return Teacher(model, teacher, **given)
    for name in given:
        raise InputError(
            f"`{name}` has no effect without `teacher`. Leave it out, or pass "
            "`teacher`."
        )
    return None


class Teacher:
    """The outputs of a teacher for the texts that a student learns from.

    Args:
      student: The text model to train.
      teacher: A text model of the same class, or the path of its checkpoint.
      distillation_weight, temperature: See `fit`.

    Raises:
      InputError: An option is not valid, or the teacher does not fit.
    """

    def __init__(
        self,
        student: Any,
        teacher: Any,
        distillation_weight: float = 0.9,
        temperature: float = 2.0,
    ):
        if "loss" not in student._auto_arguments:
            raise InputError("A teacher needs `loss=auto`.")
        self._options = distillation_weight, temperature
        for name, value, least, most in (
            ("`distillation_weight`", distillation_weight, 0.0, 1.0),
            ("`temperature`", temperature, 0.1, 100.0),
        ):
            require_number(name, value, "a finite number", math.isfinite)
            # The message of the scripts.
            if fault := number_fault(float(value), least, most):
                raise InputError(f"{name} {fault}.")
        task = student.make_task()
        kind = type(student)
        if not task.has_teachers:
            raise InputError(f"{kind.__name__}.fit has no `teacher`.")
        if isinstance(teacher, (str, os.PathLike)):
            name, path = f"`teacher={os.fspath(teacher)}`", teacher
            checkpoint = open_pretrained(path)
            options: dict[str, Any] = {"max_seq_length": student.max_seq_length}
            if hasattr(student, "problem"):
                # Only the teacher's logits are used.
                options["problem"] = student.problem
            if task.labels and not have_names(checkpoint.labels or ()):
                options["labels"] = task.labels
        elif type(teacher) is kind:
            name, path = "`teacher`", None
            facts = teacher.make_task().facts()
            checkpoint = dataclasses.replace(
                as_checkpoint(teacher.model, teacher.tokenizer, **facts),
                # The teacher has a `problem`, so the activation is not needed.
                activation_fn=None,
            )
        else:
            expected = f"a {kind.__name__}, or a path"
            raise wrong_value("`teacher`", expected, teacher)
        self._task = task_of_teacher(task, checkpoint, name)
        if path is not None:
            teacher = kind.from_pretrained(path, **options)
        self._teacher = teacher

    def task_of(self, task: FineTuningTask) -> Any:
        """Returns the task of the student, with the teacher's loss."""
        return task.student(*self._options)

    def added_to(self, features: Features) -> Features:
        """Returns the features of rows with the outputs of the teacher."""
        outputs = predict.outputs_of_rows(
            self._teacher,
            features,
            _TEACHER_BATCH_SIZE,
            self._task.predictions,
            predict.Progress(self._teacher, "predict"),
        )
        return with_outputs(self._task, features, outputs)
