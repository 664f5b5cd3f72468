"""`TrainableTextModel`: Keras's methods for texts instead of tensors."""

import contextlib
import dataclasses
import functools
import inspect
import math
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from bert_tf.checkpoints.keras_files import warn_if_random
from bert_tf.checkpoints.pretrained import require_options
from bert_tf.config import positive_integer, require_positive
from bert_tf.data.batching import Features
from bert_tf.errors import InputError, wrong_value
from bert_tf.modeling.feature_model import renew_optimizer
from bert_tf.modeling.optimization import AdamWeightDecay, WarmupLinearDecay
from bert_tf.tasks.task import FineTuningTask, balanced_class_weights
from bert_tf.text_models.batches import (
    Arguments,
    Batches,
    StepArguments,
    Stream,
    for_evaluation,
    for_training,
    num_replicas,
    require_count,
    times_rows,
    to_mean_1,
)
from bert_tf.text_models.distillation import (
    TeacherOutputs,
    only_labeled,
    teacher_options,
)
from bert_tf.text_models.inputs import (
    Part,
    class_weights,
    count_texts,
    hold_out,
    is_dataset,
    parts_of,
    require_data,
    rows_of,
    sample_weights,
    whole,
    x_y_weights,
)
from bert_tf.text_models.prediction import (
    TEXTS_AT_A_TIME,
    PredictingTextModel,
)
from bert_tf.text_models.progress import (
    Epochs,
    Evaluate,
    Progress,
    Validation,
    callbacks_of,
)

# As in the original's scripts.
LEARNING_RATE = 5e-5
WARMUP_SHARE = 0.1
CLIP_NORM = 1.0

# The arguments of Keras's `fit`.
_KERAS_OPTIONS = {*inspect.signature(keras.Model.fit).parameters}


class TrainableTextModel(PredictingTextModel):
    """What `TextModel` adds to Keras's methods, for all kinds of models."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        # The default optimizer's; None for any other optimizer.
        self._peak_learning_rate: float | None = None
        # The arguments of `compile` that are "auto".
        self._auto_arguments: tuple[str, ...] = ()
        self._training_task: FineTuningTask | None = None
        self._class_weights: np.ndarray | None = None
        self._teacher: TeacherOutputs | None = None
        # The ids of the variables that the optimizer was built for.
        self._optimized_variables: list[int] | None = None
        self._has_metric_variables = False

    # Keras's methods.

    def compile(
        self,
        optimizer: Any = "auto",
        loss: Any = "auto",
        metrics: Any = "auto",
        *,
        learning_rate: float | None = None,
        jit_compile: Any = "auto",
        **kwargs: Any,
    ) -> None:
        """Configures training; by default as in the original's scripts.

        Args:
          optimizer: "auto" is `AdamWeightDecay`, with gradients clipped to
            norm 1. Each `fit` then resets it: the learning rate rises in the
            first tenth of the steps and falls to 0 at the last.
          loss: "auto" is the loss of this kind of model, from logits.
          metrics: Keras's metrics of logits; "auto" for the usual ones.
          learning_rate: The highest learning rate, with optimizer="auto"; by
            default 5e-5.
          jit_compile: As in Keras, which by default compiles whole steps with
            XLA, except on CPUs with TensorFlow.
          **kwargs: Keras's further arguments.
        """
        if optimizer is None:
            raise wrong_value("optimizer", "an optimizer or its name", None)
        arguments = {"optimizer": optimizer, "loss": loss, "metrics": metrics}
        self._auto_arguments = tuple(
            name
            for name, value in arguments.items()
            if isinstance(value, str) and value == "auto"
        )
        self._peak_learning_rate = None
        if "optimizer" in self._auto_arguments:
            if learning_rate is None:
                learning_rate = LEARNING_RATE
            require_positive("learning_rate", learning_rate)
            self._peak_learning_rate = float(learning_rate)
            # `fit` replaces the schedule when it knows the number of steps.
            schedule = WarmupLinearDecay(self._peak_learning_rate, 1, 0)
            with self._scope():
                optimizer = AdamWeightDecay(schedule, global_clipnorm=CLIP_NORM)
        elif learning_rate is not None:
            raise InputError(
                "learning_rate is for optimizer='auto'. Pass it to the "
                "optimizer instead."
            )
        super().compile(
            optimizer=optimizer,
            # `compute_loss` computes the task's loss.
            loss=None if "loss" in self._auto_arguments else loss,
            metrics=self._default_metrics()
            if "metrics" in self._auto_arguments
            else metrics,
            jit_compile=jit_compile,
            **kwargs,
        )
        self._has_metric_variables = False

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        """Returns the loss of a step; with loss="auto" the task's."""
        task = self._training_task if training else self.make_task()
        if "loss" not in self._auto_arguments:
            weights = times_rows(task.element_weights(x), sample_weight)
            weights = weights * to_mean_1(task.is_element(x))
            return super().compute_loss(x, y, y_pred, weights, training)
        weights = task.loss_weights(x)
        losses = task.losses(x, self._outputs_of_task(y_pred))
        means = [
            keras.ops.mean(values * sample_weight) * to_mean_1(weights[name])
            for name, values in losses.items()
        ]
        # Keras adds up the gradients of the replicas.
        return (sum(means) + sum(self.losses)) / num_replicas()

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """Updates Keras's metrics; only elements of the task have a weight."""
        weights = self.make_task().element_weights(x)
        weights = times_rows(weights, sample_weight)
        return super().compute_metrics(x, y, y_pred, weights)

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
            `keras.utils.PyDataset` of texts and labels, and perhaps weights. It
            may be larger than the memory: its texts are read, shuffled and
            tokenized in parts.
          y: The labels, one for each text.
          batch_size: The number of examples of a step.
          epochs: The number of passes over the data.
          validation_data: A tuple (x, y) or (x, y, sample_weight) to evaluate
            after each epoch; `x` alone for models that need no labels. Data
            sets are read into memory.
          validation_split: The fraction of the data, held out from its end, to
            evaluate instead. A data set is then read into memory.
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
          steps_per_epoch: The number of steps of an epoch of a data set, which
            continues where the last one ended. By default the steps are
            counted, and each epoch has every text once.
          teacher: A trained model of the same class, labels and tokens, or the
            path of its checkpoint: the model also learns from the teacher's
            outputs. Texts of a `TextClassifier` may then have no label: None
            or NaN in `y`, or no `y`. Keras's metrics compare those texts with
            the teacher's answers; validation ignores them. `TextEmbedder` and
            `MaskedWordPredictor` have no teachers.
          distillation_weight: The weight of the teacher's loss; the labels'
            loss has 1 - this weight. By default 0.9.
          temperature: Divides all logits in the teacher's loss, from 0.1 to
            100: higher values show more of how the teacher ranks incorrect
            answers. By default 2.
          **options: `verbose` and others of Keras's `fit`.

        Returns:
          Keras's `History`.

        Raises:
          InputError: If texts and labels do not fit each other or the model.
        """
        if "shuffle" in options:
            raise InputError(
                "fit does not accept shuffle: every epoch has each text once, "
                "in an order that depends on seed."
            )
        require_options("fit", options, _KERAS_OPTIONS)
        if not self.compiled:
            self.compile()
        with self._learning_from(teacher, distillation_weight, temperature):
            data = Part(x, y, sample_weight)
            require_data(data, "steps_per_epoch", steps_per_epoch)
            data, held_out = self._divided(
                data, validation_data, validation_split, options
            )
            batches = self._training_data(
                data, batch_size, epochs, seed, class_weight, steps_per_epoch
            )
            require_count("initial_epoch", initial_epoch)
            self.num_steps = len(batches) * epochs
            self.usual_length = batches.usual_length
            if self._peak_learning_rate is not None:
                self._restart(self._peak_learning_rate, initial_epoch > 0)
            self._build_state(batches)
            validation, options = self._validated(held_out, batch_size, options)
            verbose = options.pop("verbose", "auto")
            return super().fit(
                batches.for_backend(),
                epochs=epochs,
                initial_epoch=initial_epoch,
                callbacks=self._all_callbacks(
                    callbacks, validation, batches, data.x, verbose, epochs
                ),
                verbose=verbose,
                # The rows are shuffled already.
                shuffle=False,
                **options,
            )

    def _validated(
        self, held_out: Part | None, batch_size: int, options: dict[str, Any]
    ) -> tuple[Validation | None, dict[str, Any]]:
        """Returns the validation of `fit`, and its other options."""
        others = dict(options)
        size = others.pop("validation_batch_size", None)
        size = batch_size if size is None else size
        steps = others.pop("validation_steps", None)
        frequency = others.pop("validation_freq", 1)
        if held_out is None:
            return None, others
        positive_integer("validation_batch_size", size)
        held_out = whole(held_out, self._needs_labels, size, steps)
        return Validation(self._validation(held_out, size), frequency), others

    def _all_callbacks(
        self,
        callbacks: Any,
        validation: Validation | None,
        batches: StepArguments,
        data: Any,
        verbose: Any,
        epochs: int,
    ) -> keras.callbacks.CallbackList:
        """Returns the callbacks of `fit`, with Keras's own callbacks."""
        # The validation is first, so that other callbacks see its scores.
        all_callbacks = keras.callbacks.CallbackList(
            [
                *([validation] if validation else []),
                *keras.tree.flatten(callbacks_of(callbacks or [])),
                Epochs(batches, data),
            ],
            add_history=True,
            add_progbar=verbose != 0,
            verbose=verbose,
            epochs=epochs,
            steps=len(batches),
            model=self,
        )
        if validation:
            validation.callbacks = all_callbacks
        return all_callbacks

    @contextlib.contextmanager
    def _learning_from(
        self, teacher: Any, weight: float | None, temperature: float | None
    ) -> Iterator[None]:
        """Sets what the model learns from a teacher, if there is one."""
        options = teacher_options(
            teacher is not None,
            distillation_weight=weight,
            temperature=temperature,
        )
        if teacher is not None:
            if "loss" not in self._auto_arguments:
                raise InputError("A teacher needs `loss=auto`.")
            self._teacher = TeacherOutputs(self, teacher, *options)
        try:
            yield
        finally:
            self._teacher = None

    def _divided(
        self, data: Part, validation_data: Any, share: float, options: Any
    ) -> tuple[Part, Part | None]:
        """Returns the training data, and the validation data or None."""
        if validation_data is not None:
            held_out = x_y_weights(validation_data)
            steps = options.get("validation_steps")
            require_data(held_out, "validation_steps", steps)
            has_y = held_out.y is not None or is_dataset(held_out.x)
            if self._needs_labels and not has_y:
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
        return hold_out(whole(data, self._needs_labels), share)

    def _training_data(
        self,
        data: Part,
        batch_size: int,
        epochs: int,
        seed: int,
        class_weight: Any,
        steps_per_epoch: int | None,
    ) -> StepArguments:
        """Returns the steps of all epochs."""
        for name, value in (("epochs", epochs), ("batch_size", batch_size)):
            positive_integer(name, value)
        require_count("seed", seed)
        if is_dataset(data.x):
            return self._stream(
                data, batch_size, seed, class_weight, steps_per_epoch
            )
        if steps_per_epoch is not None:
            raise InputError(
                "steps_per_epoch is for a data set. Leave it out: an epoch has "
                "every text once."
            )
        data = whole(data, self._needs_labels)
        features = self._to_learn(self._weighted_features(*data))
        if isinstance(class_weight, str) and class_weight == "balanced":
            names = self._class_names()
            numbers = self._label_ids(features) if names else np.zeros(1, int)
            balanced = balanced_class_weights(numbers, len(names))
            class_weight = dict(zip(names, balanced, strict=False))
        arguments = self._training_arguments(class_weight)
        return for_training(features, batch_size, epochs, seed, arguments)

    def _stream(
        self,
        data: Part,
        batch_size: int,
        seed: int,
        class_weight: Any,
        steps_per_epoch: int | None,
    ) -> Stream:
        """Returns the steps of a data set that is not read into memory."""
        if isinstance(class_weight, str):
            raise InputError(
                f"class_weight={class_weight!r} needs all labels. With a data "
                "set, pass the weight of each label."
            )
        # Whole batches, except in the last part.
        size = -(-TEXTS_AT_A_TIME // batch_size) * batch_size

        def encoded() -> Iterator[Features]:
            texts = parts_of(rows_of(data.x, self._needs_labels), size)
            return (self._weighted_features(*part) for part in texts)

        def parts() -> Iterator[Features]:
            return map(self._to_learn, encoded())

        if steps_per_epoch is not None:
            num_steps = steps_per_epoch
        elif self._has_one_row():
            num_steps = -(-count_texts(data.x) // batch_size)
        else:
            lengths = map(len, encoded())
            num_steps = sum(-(-length // batch_size) for length in lengths)
        if not num_steps:
            raise InputError("There are no texts.")
        return Stream(
            parts,
            num_steps,
            steps_per_epoch is not None,
            batch_size,
            seed,
            self._training_arguments(class_weight),
        )

    def _training_arguments(self, class_weight: Any) -> Arguments:
        """Makes the task of the training; returns its `_arguments`."""
        options, before = {}, self._class_weights
        if class_weight is not None:
            class_weight = class_weights(class_weight, self._class_names())
            options["class_weights"] = class_weight
        self._class_weights = class_weight
        if not np.array_equal(class_weight, before):
            # The compiled step contains the old weights.
            self.train_function = None
        task = self.make_task(**options)
        if self._teacher is not None:
            task = self._teacher.task_of(task)
            self.train_function = None
        self._training_task = task
        return functools.partial(self._arguments, True)

    def _to_learn(self, features: Features) -> Features:
        """Returns features to train on.

        They have the outputs of the teacher, if there is one.
        """
        if self._teacher is None:
            return features
        return self._teacher.added_to(features)

    def _scope(self) -> Any:
        """Returns the scope of the `tf.distribute.Strategy` of the model."""
        if keras.backend.backend() != "tensorflow":
            return contextlib.nullcontext()
        return self.distribute_strategy.scope()

    def _build_state(self, batches: StepArguments) -> None:
        """Makes the variables of the optimizer and of the metrics."""
        optimizer = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        variables = [*map(id, self.trainable_variables)]
        with self._scope():
            if optimizer.built and variables != self._optimized_variables:
                # Layers were frozen or unfrozen.
                renew_optimizer(self)
            self.optimizer.build(self.trainable_variables)
            self._optimized_variables = variables
            is_tensorflow = keras.backend.backend() == "tensorflow"
            if is_tensorflow and not self._has_metric_variables:
                self._build_metrics(batches.example())
                self._has_metric_variables = True

    def _build_metrics(self, example: tuple) -> None:
        """Makes metrics' variables; without them, step 1 is traced twice."""
        x, y, weights = keras.tree.map_structure(
            lambda values: keras.ops.convert_to_tensor(values[:1]), example
        )

        def update() -> None:
            self.compute_metrics(x, y, self(x, training=False), weights)

        self.distribute_strategy.run(update)
        self.reset_metrics()

    def _maybe_symbolic_build(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing: `_build_state` has already built the model.

        Keras's version averages the replicas' first batches, which fails if
        their sizes differ.
        """

    def _weighted_features(self, x: Any, y: Any, weights: Any) -> Features:
        """Returns `_features` with the `sample_weight` of each row, if any."""
        features = self._features(x, y)
        if weights is None:
            return features
        count = len(features) if y is None else len(y)
        # A text may have several rows.
        texts = features.arrays.get("example_index", np.arange(count))
        weights = sample_weights(weights, count)[texts]
        arrays = features.arrays | {"sample_weight": weights}
        return dataclasses.replace(features, arrays=arrays)

    def _restart(self, peak: float, keep_state: bool) -> None:
        """Resets the default optimizer for a new training."""
        num_steps = self.num_steps
        self.optimizer.learning_rate = WarmupLinearDecay(
            peak, num_steps, math.floor(num_steps * WARMUP_SHARE)
        )
        # The compiled step contains the old schedule.
        self.train_function = None
        if keep_state:
            return
        # The variables of a LossScaleOptimizer keep their values: zeroing the
        # scale would zero every loss.
        optimizer = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        for variable in optimizer.variables:
            variable.assign(keras.ops.zeros(variable.shape, variable.dtype))

    def evaluate(
        self,
        x: Any,
        y: Any = None,
        batch_size: int = 32,
        sample_weight: Any = None,
        *,
        verbose: Any = "auto",
        steps: int | None = None,
        callbacks: Any = None,
        return_dict: bool = True,
        **options: Any,
    ) -> Any:
        """Returns the scripts' scores, the loss and metrics, or both, by name.

        A `TokenTagger`, for example, returns only the scripts' scores.

        Args:
          x: The texts, as for `fit`.
          y: The labels.
          batch_size: Batch size for examples of `max_seq_length`; batches of
            shorter ones are larger.
          sample_weight: The weight of each text in the loss, floats [n]. With
            it, all models return the loss and metrics.
          verbose: Whether to show a progress bar, as in Keras; "auto" shows it
            if there are more than 8 batches.
          steps: Evaluates only the first `steps * batch_size` texts, or the
            first `steps` batches of a data set of batches.
          callbacks: A callback of Keras, or a list of them.
          return_dict: Whether to return a dict; otherwise a list.
          **options: Not used: any other argument is an error.
        """
        if options:
            raise wrong_value(
                "The arguments of evaluate",
                "arguments of Keras's evaluate",
                [*options],
            )
        if not self.compiled:
            self.compile()
        warn_if_random(self.model)
        data = Part(x, y, sample_weight)
        require_data(data, "steps", steps)
        positive_integer("batch_size", batch_size)
        data = whole(data, self._needs_labels, batch_size, steps)
        callbacks = callbacks_of(callbacks or [])
        options = {"verbose": verbose, "callbacks": callbacks}
        scores = self._evaluated(data, batch_size, options)
        return scores if return_dict else [*scores.values()]

    def _evaluated(
        self, data: Part, batch_size: int, options: dict[str, Any]
    ) -> dict[str, Any]:
        """Returns answers' scores; with weights or no scores, Keras's."""
        if self._compares_examples:
            progress = Progress(self, "test", **options)
            features = self._weighted_features(*data)
            return self._scores_of_examples(features, batch_size, progress)
        if data.weights is None:
            progress = Progress(self, "test", **options)
            scores = self._scores(data.x, data.y, batch_size, progress)
            if scores:
                progress.end(scores)
                return scores
        return self._keras_scores(*data, batch_size, options)

    def _keras_scores(
        self, x: Any, y: Any, weights: Any, batch_size: int, options: Any
    ) -> Any:
        """Returns the loss and Keras's metrics."""
        batches = self._evaluation_data(x, y, weights, batch_size)
        with self._scope():
            if num_replicas() > 1:
                self._build_state(batches)
        data = batches.for_backend()
        return super().evaluate(data, **{**options, "return_dict": True})

    def _validation(self, data: Part, batch_size: int) -> Evaluate:
        """Returns the function that evaluates after an epoch of `fit`.

        It returns the loss, the metrics and the scores of answers.
        """
        if self._compares_examples:
            features = only_labeled(self._weighted_features(*data))
            return lambda callbacks: self._scores_of_examples(
                features, batch_size, Progress(self, "test", callbacks)
            )
        batches = self._evaluation_data(*data, batch_size)
        evaluate = super().evaluate

        def validate(callbacks: keras.callbacks.CallbackList) -> dict:
            scores = evaluate(
                batches.for_backend(),
                verbose=0,
                callbacks=callbacks,
                return_dict=True,
            )
            progress = Progress(self, "test")
            return {**self._scores(*data[:2], batch_size, progress), **scores}

        return validate

    def _evaluation_data(
        self, x: Any, y: Any, weights: Any, batch_size: int
    ) -> Batches:
        return for_evaluation(
            self._weighted_features(x, y, weights),
            batch_size,
            functools.partial(self._arguments, False),
        )

    def get_compile_config(self) -> dict[str, Any] | None:
        """Returns what a saved model needs to be compiled again."""
        config = super().get_compile_config()
        if config is None:
            return None
        config |= dict.fromkeys(self._auto_arguments, "auto")
        if self._peak_learning_rate is not None:
            config["learning_rate"] = self._peak_learning_rate
        return config

    def compile_from_config(self, config: Mapping[str, Any]) -> None:
        """Compiles a loaded model as the saved one was."""
        self.compile(**keras.saving.deserialize_keras_object(dict(config)))
        self.optimizer.build(self.trainable_variables)
        self._optimized_variables = [*map(id, self.trainable_variables)]
