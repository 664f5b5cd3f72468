"""`TextModel`: what all models from strings to answers share."""

import abc
import contextlib
import dataclasses
import functools
import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import keras
import numpy as np

from bert_tf import files
from bert_tf.config import positive_integer, require_positive
from bert_tf.data.batching import Features, in_memory
from bert_tf.errors import InputError, wrong_value
from bert_tf.feature_model import (
    FeatureModel,
    FreezableModel,
    dense_layers,
    renew_optimizer,
)
from bert_tf.interop import adapters
from bert_tf.optimization import AdamWeightDecay, WarmupLinearDecay
from bert_tf.pretrained import (
    options_of,
    require_options,
    save,
    tokenizer_arguments,
    warn_if_random,
)
from bert_tf.tasks.encoding import (
    Encoding,
    TextEncoding,
    make_features,
    split_examples,
)
from bert_tf.tasks.examples import Example
from bert_tf.text_models.batches import (
    Batches,
    for_evaluation,
    for_training,
    require_count,
    runs_without_xla,
    weighted,
)
from bert_tf.text_models.inputs import (
    class_weights,
    hold_out,
    sample_weights,
    split_dataset,
    x_y_weights,
)
from bert_tf.tokenization.wordpiece import FullTokenizer
from bert_tf.transformer import LORA_TARGETS

# The inputs of a model.
INPUTS = ("input_ids", "input_mask", "segment_ids")

# What to do about labels that several classes share.
NAME_THE_CLASSES = (
    "Pass labels=[...], a name for each class, in the order of the logits."
)

# As in the original's scripts.
LEARNING_RATE = 5e-5
WARMUP_SHARE = 0.1
CLIP_NORM = 1.0


class TextModel(FreezableModel, abc.ABC):
    """A model of bert_tf with its tokenizer.

    `compile`, `fit` and `evaluate` are Keras's, for texts instead of tensors;
    `predict` returns readable answers. Texts are tokenized and batched as in
    the scripts.

    Args:
      model: The model, for example a `BertClassifier`.
      tokenizer: A `FullTokenizer` or a `BertTokenizer`.
      max_seq_length: The longest sequence, in tokens with [CLS] and [SEP].

    Attributes:
      model: The model.
      tokenizer: A `FullTokenizer`.
      max_seq_length: The argument.
    """

    # The class of `model`.
    model_class: ClassVar[type[FeatureModel]]
    # Whether `fit` and `evaluate` need `y`.
    _needs_labels: ClassVar[bool] = True

    def __init__(
        self,
        model: FeatureModel,
        tokenizer: Any,
        max_seq_length: int = 128,
        **kwargs: Any,
    ):
        if not isinstance(model, self.model_class):
            expected = f"a {self.model_class.__name__}"
            advice = "For a checkpoint use from_pretrained."
            raise wrong_value("model", expected, model, advice)
        if not hasattr(tokenizer, "vocabulary"):
            expected = "a FullTokenizer or a BertTokenizer"
            raise wrong_value("tokenizer", expected, tokenizer)
        super().__init__(dtype=model.dtype_policy, **kwargs)
        # Token ids must not be cast to the compute dtype.
        self.autocast = False
        most = model.config.max_position_embeddings
        max_seq_length = positive_integer("max_seq_length", max_seq_length)
        if not 3 <= max_seq_length <= most:
            raise wrong_value(
                "max_seq_length",
                f"from 3 to {most}, the model's max_position_embeddings",
                max_seq_length,
            )
        if len(tokenizer.vocabulary) > model.config.vocab_size:
            raise InputError(
                f"The tokenizer has {len(tokenizer.vocabulary)} tokens, more "
                f"than the model's vocab_size of {model.config.vocab_size}."
            )
        if not isinstance(tokenizer, FullTokenizer):
            tokenizer = FullTokenizer(
                tokenizer.vocabulary,
                tokenizer.do_lower_case,
                tokenizer.strip_accents,
            )
        self.model = model
        self.tokenizer = tokenizer
        self.max_seq_length = max_seq_length
        self._peak: float | None = None
        self._automatic: tuple[str, ...] = ()
        self._compiled_call: tuple[Any, Callable] | None = None
        if not model.built:
            # `summary` shows the shapes that it is built with.
            model.build((None,) * model.input_rank)
        self.built = True

    @classmethod
    def from_pretrained(
        cls, path: str | os.PathLike[str], **options: Any
    ) -> Self:
        """Makes a model with the weights and the vocabulary of a checkpoint.

        Args:
          path: See `load_checkpoint`.
          **options: Arguments of the constructor (except `model` and
            `tokenizer`), and of `from_pretrained` of the model inside, such as
            `labels`, `dtype` or `dropout`.

        Raises:
          InputError: If the checkpoint cannot be read, has no vocabulary, or
            does not fit the options.
        """
        ours = {*inspect.signature(cls).parameters} - {"labels"}
        known = ours | options_of(cls.model_class)
        require_options(cls.__name__, options, known - {"model", "tokenizer"})
        own = {name: options.pop(name) for name in ours & options.keys()}
        model = cls.model_class.from_pretrained(path, **options)
        found = model.checkpoint
        arguments = tokenizer_arguments(found)
        tokenizer = FullTokenizer(arguments.pop("vocabulary"), **arguments)
        defaults = cls._recorded_options(found)
        return cls(model, tokenizer, **{**defaults, **own})

    @classmethod
    def _recorded_options(cls, found: Any) -> dict[str, Any]:
        """Returns the arguments that a checkpoint records."""
        if found.max_seq_length is None:
            most = found.config.max_position_embeddings
            return {"max_seq_length": min(128, most)}
        return {"max_seq_length": found.max_seq_length}

    # What each kind of model defines.

    @abc.abstractmethod
    def _features(self, x: Any, y: Any) -> Features:
        """Returns the features of texts `x`, with labels unless `y` is None."""

    @abc.abstractmethod
    def _arguments(self, batch: Mapping[str, np.ndarray]) -> tuple:
        """Returns the inputs, targets and, if needed, weights of a batch."""

    def _evaluation_arguments(self, batch: Mapping[str, np.ndarray]) -> tuple:
        """Returns the same as `_arguments`, without chance."""
        return self._arguments(batch)

    def _class_names(self) -> Sequence[str]:
        """Returns the labels if each target is one of them."""
        return ()

    @abc.abstractmethod
    def _default_loss(self) -> Any:
        """Returns the loss from logits."""

    def _default_metrics(self) -> Any:
        return None

    @abc.abstractmethod
    def _served(self) -> Any:
        """Returns the `serving.served.Served` to export."""

    def _facts(self) -> dict[str, Any]:
        """Returns what a saved checkpoint records besides the weights."""
        return {"max_seq_length": self.max_seq_length}

    # Keras's methods.

    def call(self, inputs, training=False):
        """Maps features, int32 [B, S], to logits; used by `fit`."""
        return self.model(inputs, training=training)["logits"]

    def compile(
        self,
        optimizer: Any = "auto",
        loss: Any = "auto",
        metrics: Any = "auto",
        *,
        learning_rate: float | None = None,
        jit_compile: Any = None,
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
          jit_compile: As in Keras. None: with XLA, except on CPUs with
            TensorFlow, whose own kernels are faster there.
          **kwargs: Keras's further arguments.
        """
        given = {"optimizer": optimizer, "loss": loss, "metrics": metrics}
        self._automatic = tuple(
            name
            for name, value in given.items()
            if isinstance(value, str) and value == "auto"
        )
        self._peak = None
        if "optimizer" in self._automatic:
            if learning_rate is None:
                learning_rate = LEARNING_RATE
            require_positive("learning_rate", learning_rate)
            self._peak = float(learning_rate)
            # `fit` replaces the schedule when it knows the number of steps.
            schedule = WarmupLinearDecay(self._peak, 1, 0)
            with self._scope():
                optimizer = AdamWeightDecay(schedule, global_clipnorm=CLIP_NORM)
        elif learning_rate is not None:
            raise InputError(
                "learning_rate is for optimizer='auto'. Give it to the "
                "optimizer instead."
            )
        if jit_compile is None:
            jit_compile = False if runs_without_xla() else "auto"
        super().compile(
            optimizer=optimizer,
            loss=self._default_loss() if "loss" in self._automatic else loss,
            metrics=self._default_metrics()
            if "metrics" in self._automatic
            else metrics,
            jit_compile=jit_compile,
            **kwargs,
        )

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
        class_weight: Mapping[Any, float] | None = None,
        initial_epoch: int = 0,
        callbacks: Any = None,
        seed: int = 0,
        **options: Any,
    ) -> keras.callbacks.History:
        """Trains the model, as Keras's `fit`.

        Args:
          x: The texts, see the class; or a `tf.data.Dataset` of texts and
            labels, which is read into memory.
          y: The labels, one for each text.
          batch_size: The number of examples of a step.
          epochs: The number of passes over the data.
          validation_data: A tuple (x, y) or (x, y, sample_weight) to evaluate
            after each epoch; `x` alone for models that need no labels.
          validation_split: The share of the data, taken from its end, to
            evaluate instead.
          sample_weight: The weight of each text in the loss, floats [n].
          class_weight: The weights of labels in the loss, by name or number;
            those of other labels are 1.
          initial_epoch: The epoch to go on from, counted from 0. The default
            optimizer then keeps its state. A model that was loaded from a
            `.keras` file draws other dropout masks than without the
            interruption: the file has no state of seed generators.
          callbacks: A callback of Keras, or a list of them.
          seed: Determines the order of the examples.
          **options: `verbose` and others of Keras's `fit`.

        Returns:
          Keras's `History`.

        Raises:
          InputError: If texts and labels do not fit each other or the model.
        """
        if fault := options.keys() & {"shuffle", "steps_per_epoch"}:
            raise InputError(
                f"fit does not have {min(fault)}: each epoch has every text "
                "once, in an order that depends on seed."
            )
        if not self.compiled:
            self.compile()
        data = split_dataset(x, y, sample_weight, self._needs_labels)
        if validation_data is not None:
            validation_data = split_dataset(
                *x_y_weights(validation_data), self._needs_labels
            )
        elif validation_split:
            data, validation_data = hold_out(*data, validation_split)
        if class_weight is not None:
            class_weight = class_weights(class_weight, self._class_names())
        batches = for_training(
            self._weighted_features(*data),
            batch_size,
            epochs,
            seed,
            weighted(self._arguments, class_weight),
        )
        require_count("initial_epoch", initial_epoch)
        if validation_data is not None:
            validation_data = self._validation_data(
                *validation_data, batch_size
            )
        if self._peak is not None:
            self._restart(self._peak, len(batches) * epochs, initial_epoch > 0)
        self._build_state(batches)
        in_order = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, _: batches.set_epoch(epoch)
        )
        return super().fit(
            batches.for_backend(),
            epochs=epochs,
            initial_epoch=initial_epoch,
            callbacks=[*keras.tree.flatten(callbacks or []), in_order],
            # The rows are shuffled already.
            shuffle=False,
            validation_data=validation_data,
            **options,
        )

    def _scope(self) -> Any:
        """Returns the scope of the `tf.distribute.Strategy` of the model."""
        if keras.backend.backend() != "tensorflow":
            return contextlib.nullcontext()
        return self.distribute_strategy.scope()

    def _build_state(self, batches: Batches) -> None:
        """Makes the variables of the optimizer and of the metrics."""
        optimizer = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        with self._scope():
            if optimizer.built and {
                *map(id, optimizer._trainable_variables)
            } != {*map(id, self.trainable_variables)}:
                # Layers were frozen, or thawed.
                renew_optimizer(self)
            if keras.backend.backend() == "tensorflow":
                # Otherwise TensorFlow traces the first step twice.
                self._symbolic_build(data_batch=batches[0])

    def _maybe_symbolic_build(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing: `_build_state` has done it.

        Keras averages the first batches of the replicas for it, which fails if
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

    def _restart(self, peak: float, num_steps: int, keep_state: bool) -> None:
        """Resets the default optimizer for a new training."""
        self.optimizer.learning_rate = WarmupLinearDecay(
            peak, num_steps, math.floor(num_steps * WARMUP_SHARE)
        )
        # The compiled step contains the old schedule.
        self.train_function = None
        if keep_state:
            return
        # The variables of a LossScaleOptimizer keep their values: a scale of
        # 0 would make every loss 0.
        optimizer = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        for variable in optimizer.variables:
            variable.assign(keras.ops.zeros(variable.shape, variable.dtype))

    def evaluate(
        self,
        x: Any,
        y: Any = None,
        batch_size: int = 32,
        sample_weight: Any = None,
        **options: Any,
    ) -> Any:
        """Returns scores by name: by default the loss and the metrics.

        Args:
          x: The texts, as for `fit`.
          y: The labels.
          batch_size: The number of examples of full length at a time.
          sample_weight: The weight of each text in the loss, floats [n]; only
            for models whose scores include the loss.
          **options: `verbose` and others of Keras's `evaluate`.
        """
        if "_use_cached_eval_dataset" in options:
            # `fit` evaluates batches, not texts.
            return super().evaluate(x, y, batch_size=batch_size, **options)
        if not self.compiled:
            self.compile()
        warn_if_random(self.model)
        x, y, weights = split_dataset(x, y, sample_weight, self._needs_labels)
        if weights is None:
            return self._scores(x, y, batch_size, options)
        return self._keras_scores(x, y, weights, batch_size, options)

    def _scores(
        self, x: Any, y: Any, batch_size: int, options: dict[str, Any]
    ) -> Any:
        return self._keras_scores(x, y, None, batch_size, options)

    def _keras_scores(
        self, x: Any, y: Any, weights: Any, batch_size: int, options: Any
    ) -> Any:
        """Returns the loss and Keras's metrics."""
        batches = self._evaluation_data(x, y, weights, batch_size)
        if getattr(self, "_distribute_strategy", None) is not None:
            self._build_state(batches)
        data = batches.for_backend()
        return super().evaluate(data, **{"return_dict": True, **options})

    def _validation_data(
        self, x: Any, y: Any, weights: Any, batch_size: int
    ) -> Any:
        """Returns what `fit` evaluates after each epoch."""
        return self._evaluation_data(x, y, weights, batch_size).for_backend()

    def _evaluation_data(
        self, x: Any, y: Any, weights: Any, batch_size: int
    ) -> Batches:
        return for_evaluation(
            self._weighted_features(x, y, weights),
            batch_size,
            weighted(self._evaluation_arguments),
        )

    def _outputs(
        self, features: Features, batch_size: int, call: Callable
    ) -> list[np.ndarray]:
        """Returns the outputs of a function for each row, in order.

        Args:
          features: The rows.
          batch_size: The number of rows of full length at a time.
          call: Maps a batch of `INPUTS` to an array, or a dict of them, [b,
            ...].
        """
        warn_if_random(self.model)
        batches = for_evaluation(features, batch_size, self._arguments)
        found: list[Any] = [None] * len(features)
        for rows in batches.rows:
            batch = batches.gather(rows)
            outputs = call({name: batch[name] for name in INPUTS})
            outputs = keras.tree.map_structure(
                keras.ops.convert_to_numpy, outputs
            )
            for position, row in enumerate(rows):
                found[row] = keras.tree.map_structure(
                    lambda x, position=position: x[position], outputs
                )
        return found

    def _call(self, features: Mapping[str, np.ndarray]) -> Any:
        """Returns the outputs of a batch of `INPUTS`, int32 [b, S].

        On TensorFlow, Keras's `predict_on_batch` would trace a graph for each
        of the first shapes and log warnings.
        """
        if keras.backend.backend() != "tensorflow":
            return self.predict_on_batch(features)
        # Adapters and quantization change the variables, and so the graph.
        variables = [*map(id, self.variables)]
        if self._compiled_call is None or self._compiled_call[0] != variables:
            import tensorflow as tf

            spec = tf.TensorSpec([None, None], tf.int32)
            # A partial, since TensorFlow warns of functions with the same code
            # as of one that it traces too often.
            call = tf.function(
                functools.partial(lambda batch: self(batch, training=False)),
                input_signature=[dict.fromkeys(INPUTS, spec)],
                autograph=False,
            )
            self._compiled_call = variables, call
        return self._compiled_call[1](features)

    def get_compile_config(self) -> dict[str, Any] | None:
        """Returns what a saved model needs to be compiled again."""
        config = super().get_compile_config()
        if config is None:
            return None
        config |= dict.fromkeys(self._automatic, "auto")
        if self._peak is not None:
            config["learning_rate"] = self._peak
        return config

    def compile_from_config(self, config: Mapping[str, Any]) -> None:
        """Compiles a loaded model as the saved one was."""
        self.compile(**keras.saving.deserialize_keras_object(dict(config)))
        self.optimizer.build(self.trainable_variables)

    def get_config(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "model": keras.saving.serialize_keras_object(self.model),
            "vocabulary": list(self.tokenizer.vocabulary),
            "do_lower_case": self.tokenizer.do_lower_case,
            "strip_accents": self.tokenizer.strip_accents,
            "max_seq_length": self.max_seq_length,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects=None) -> Self:
        config = dict(config)
        model = keras.saving.deserialize_keras_object(
            config.pop("model"), custom_objects=custom_objects
        )
        tokenizer = FullTokenizer(
            config.pop("vocabulary"),
            config.pop("do_lower_case"),
            config.pop("strip_accents"),
        )
        return cls(model, tokenizer, **config)

    def _encoding(self) -> TextEncoding:
        return TextEncoding(*self._encoding_arguments())

    def _encoding_arguments(self) -> tuple:
        tokenizer = self.tokenizer
        return (
            tokenizer.vocabulary,
            tokenizer.do_lower_case,
            tokenizer.strip_accents,
            self.max_seq_length,
        )

    def _unlabelled_encoding(self) -> Encoding:
        """Returns the encoding of examples whose label is not used."""
        return Encoding(*self._encoding_arguments(), "regression", ())

    def enable_lora(
        self,
        rank: int,
        target_layer_names: Sequence[str] | str = LORA_TARGETS,
        lora_alpha: float | None = None,
    ) -> None:
        """Adds LoRA adapters; see `BertModel.enable_lora`."""
        self.model.enable_lora(rank, target_layer_names, lora_alpha)
        renew_optimizer(self)

    def merge_lora(self) -> None:
        """Merges the adapters; see `BertModel.merge_lora`."""
        if self.model.adapters():
            self.model.merge_lora()
            renew_optimizer(self)

    def save_lora_weights(self, filepath: str | os.PathLike[str]) -> None:
        """Writes only what `enable_lora` trains, and the labels.

        See `BertModel.save_lora_weights`.
        """
        adapters.save(self.model, filepath, **self._lora_facts())

    def load_lora_weights(self, filepath: str | os.PathLike[str]) -> None:
        """Loads a file of `save_lora_weights` of a model with the same labels.

        See `BertModel.load_lora_weights`. The files of PEFT have no labels; the
        rows of their head must be in the order of the model's.
        """
        had_adapters = self.model.adapters()
        adapters.load(self.model, filepath, **self._lora_facts())
        if not had_adapters:
            renew_optimizer(self)

    def _lora_facts(self) -> dict[str, Any]:
        facts = self._facts()
        names = ("labels", "problem_type")
        return {name: facts[name] for name in names if name in facts}

    def save_pretrained(
        self, folder: str | os.PathLike[str], format: str = "huggingface"
    ) -> None:
        """Writes the model, its vocabulary and labels for other libraries.

        See `BertModel.save_pretrained`.
        """
        save(self.model, folder, format, self.tokenizer, **self._facts())

    def export(
        self,
        filepath: str | os.PathLike[str],
        name: str = "bert",
        version: int | None = None,
        num_parts: int = 1,
    ) -> str:
        """Writes a SavedModel from strings to answers, as `--do_export` does.

        Needs Keras's TensorFlow backend.

        Args:
          filepath: The folder of all versions.
          name: The model's name on the server.
          version: The number of the version. By default the time in seconds,
            or the number after the highest that exists.
          num_parts: Parts of each layer that a server computes at the same
            time, on different CPU cores. 2 is faster for one text if the
            server has the flags in docs/serving.md, else 1.

        Returns:
          The folder of the version.
        """
        if keras.backend.backend() != "tensorflow":
            raise InputError(
                "An export needs Keras's TensorFlow backend. Save the model "
                "with save_pretrained and load it there."
            )
        if any(layer.quantization_mode for _, layer in dense_layers(self)):
            raise InputError(
                f"{self.name} is quantized. Call export before quantize, or "
                "model.export of the attribute model, which takes token ids."
            )
        warn_if_random(self.model)
        # Needs TensorFlow Text.
        from bert_tf.serving.export import export

        return export(
            self._served(),
            files.path_text(filepath, "filepath"),
            name=name,
            version=version,
            num_parts=num_parts,
        )


def text_features(examples: Sequence[Example], encoding: Encoding) -> Features:
    """Returns the features of texts or pairs with their labels."""
    # In parts, which limits the memory.
    parts = (
        make_features(part, encoding)
        for part in split_examples(examples, encoding)
    )
    return in_memory((part.batch for part in parts), encoding.schema)
