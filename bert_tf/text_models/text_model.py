"""`TextModel`: the base class of models that map strings to answers."""

import abc
import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

import keras
import numpy as np

from bert_tf.base import files
from bert_tf.checkpoints import adapters
from bert_tf.checkpoints.conversion import save
from bert_tf.checkpoints.keras_files import warn_if_random
from bert_tf.checkpoints.pretrained import (
    make_model,
    options_of,
    require_options,
    tokenizer_arguments,
)
from bert_tf.config import positive_integer, require_positive
from bert_tf.data.batching import Features
from bert_tf.data.records import INPUTS
from bert_tf.errors import InputError, shortened, wrong_value
from bert_tf.modeling.dense import dense_layers
from bert_tf.modeling.feature_model import (
    FeatureModel,
    TrainableModel,
    renew_optimizer,
)
from bert_tf.modeling.transformer import LORA_TARGETS
from bert_tf.tasks.encoding import TextEncoding
from bert_tf.tasks.examples import Example
from bert_tf.tasks.task import FineTuningTask
from bert_tf.text_models import fit as fitting
from bert_tf.text_models import predict
from bert_tf.text_models.batches import (
    ONLY_IN_BATCHES,
    num_replicas,
    targets_of,
    times_rows,
    to_mean_1,
    weighted_features,
)
from bert_tf.text_models.inputs import (
    Part,
    as_columns,
    is_single,
    labels_of,
    require_data,
    require_present,
    whole,
)
from bert_tf.text_models.predict import Progress
from bert_tf.tokenization.vocabulary_file import load_vocab, require_fit
from bert_tf.tokenization.wordpiece import FullTokenizer

Kind = TypeVar("Kind", bound=TextEncoding)

# Advice for labels that are missing or not different.
NAME_THE_CLASSES = (
    "Pass labels=[...], a name for each class, in the order of the logits."
)

# As in the original's scripts.
LEARNING_RATE = 5e-5

_OF_TOKENIZER = ("do_lower_case", "strip_accents")


class TextModel(TrainableModel, abc.ABC):
    """A model of bert_tf with its tokenizer.

    `compile` and `fit` are Keras's, for texts instead of tensors. `evaluate`
    returns scores, and `predict` readable answers. Texts are tokenized and
    batched as in the scripts.

    Args:
      model: The model, for example a `BertClassifier`.
      tokenizer: A `FullTokenizer` or a `BertTokenizer`.
      max_seq_length: The longest sequence, in tokens with [CLS] and [SEP].

    Attributes:
      model: The model.
      tokenizer: A `FullTokenizer`.
      max_seq_length: The argument.
    """

    # The classes of `model` and of its task.
    model_class: ClassVar[type[FeatureModel]]
    task_class: ClassVar[type[FineTuningTask]]
    # The arguments of the constructor that checkpoints record, with their names
    # in `Pretrained`. All arguments are attributes.
    _recorded: ClassVar[Mapping[str, str]] = {
        "max_seq_length": "max_seq_length"
    }
    # The `max_seq_length` of a checkpoint that records none.
    _default_length: ClassVar[int] = 128
    # Whether `fit` and `evaluate` need `y`.
    _needs_labels: ClassVar[bool] = True
    # Whether Keras's loss and metrics get the joined logits, one row for each
    # example. One pass over the data then gives all scores.
    _compares_examples: ClassVar[bool] = False
    # Whether two strings of a data set are a pair.
    is_pair = False
    # The features that the model takes in predictions.
    _inputs = INPUTS

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
        self._compiled_call = predict.CompiledCall(self, self._inputs)
        # None if the optimizer is not the default one.
        self._peak_learning_rate: float | None = None
        # The arguments of `compile` that are "auto".
        self._auto_arguments: tuple[str, ...] = ()
        self._training_task: FineTuningTask | None = None
        self._teacher: fitting.Teacher | None = None
        if len(tokenizer.vocabulary) > model.config.vocab_size:
            raise InputError(
                f"The tokenizer has {len(tokenizer.vocabulary)} tokens, more "
                f"than the model's vocab_size of {model.config.vocab_size}."
            )
        if not isinstance(tokenizer, FullTokenizer):
            options = {name: getattr(tokenizer, name) for name in _OF_TOKENIZER}
            tokenizer = FullTokenizer(tokenizer.vocabulary, **options)
        self.model = model
        self.tokenizer = tokenizer
        self.max_seq_length = positive_integer("max_seq_length", max_seq_length)
        # Checks the length.
        self.make_encoding(TextEncoding)
        if not model.built:
            # Keras keeps these shapes, for `summary` and exports.
            model.build(model.feature_shapes(None))
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
        names = ours | options_of(cls.model_class)
        require_options(cls.__name__, options, names - {"model", "tokenizer"})
        own = {name: options.pop(name) for name in ours & options.keys()}
        kind = cls.task_class.kind
        model = make_model(cls.model_class, path, kind=kind, **options)
        pretrained = model.checkpoint
        arguments = tokenizer_arguments(pretrained)
        where = f"the vocabulary of {pretrained.path}"
        tokens, most = arguments.pop("vocabulary"), model.config.vocab_size
        require_fit(load_vocab(tokens, where), most, where)
        tokenizer = FullTokenizer(tokens, **arguments)
        return cls(model, tokenizer, **cls._recorded_options(pretrained) | own)

    @classmethod
    def _recorded_options(cls, pretrained: Any) -> dict[str, Any]:
        """Returns the arguments that a checkpoint records."""
        recorded = {
            name: value
            for name, fact in cls._recorded.items()
            if (value := getattr(pretrained, fact)) is not None
        }
        most = pretrained.config.max_position_embeddings
        return {"max_seq_length": min(cls._default_length, most), **recorded}

    def __call__(self, inputs, *args, **kwargs):
        # Keras's own error for strings is about "keyword arguments".
        if not isinstance(inputs, Mapping):
            raise InputError(
                f"{self.name} takes a dict of features, such as input_ids; got "
                f"{shortened(inputs)}. For texts, call fit, evaluate or "
                "predict."
            )
        return super().__call__(inputs, *args, **kwargs)

    # What each kind of model defines or may change.

    _training_data = fitting.training_batches
    _scores = predict.scores

    @abc.abstractmethod
    def make_task(self, **options: Any) -> FineTuningTask:
        """Returns the task of the model.

        Args:
          **options: Further arguments of the task, such as `class_weights`.
        """

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
        labels = labels_of(y, len(columns[0]))
        if y is not None:
            require_present(labels, "example", "label")
        return [
            Example(str(number), *texts, label=label, where=f"example {number}")
            for number, (label, *texts) in enumerate(
                zip(labels, *columns, strict=True)
            )
        ]

    def call(self, inputs, training=False):
        """Maps features, int32 [B, S], to logits; used by `fit`."""
        return self.model(inputs, training=training)["logits"]

    def _outputs_of_task(self, y_pred: Any) -> dict[str, Any]:
        """Returns the results of `call` by the task's names."""
        return {"logits": y_pred}

    def _call(self, batch: Mapping[str, np.ndarray]) -> Any:
        """Returns the results of `call` for the `_inputs` of a batch."""
        return self._compiled_call(batch)

    def _labelled(self, x: Any, y: Any) -> list[Any]:
        """Returns examples to train or to evaluate on."""
        return self.examples(x, y)

    def _features(self, x: Any, y: Any) -> Features:
        """Returns the features of texts `x`, with labels unless `y` is None."""
        return self.make_task().encoding.features(self._labelled(x, y))

    def _to_learn(self, features: Features) -> Features:
        """Returns features to train on.

        They have the outputs of the teacher, if there is one.
        """
        return self._teacher.added_to(features) if self._teacher else features

    def _targets(self, batch: Mapping[str, np.ndarray]) -> Any:
        """Returns the targets for Keras's own losses and metrics."""
        num_classes = len(self._class_names())
        return targets_of(self.loss, batch["label_ids"], num_classes)

    def _drawn(
        self, batch: Mapping[str, np.ndarray], is_training: bool
    ) -> Mapping[str, np.ndarray]:
        """Returns a batch as a step needs it, such as with random masks."""
        return batch

    def _has_one_row(self) -> bool:
        """Returns whether each text has one row of features."""
        return self.make_task().encoding.doc_stride is None

    def _class_names(self) -> Sequence[str]:
        """Returns the class names for single-label targets, else ()."""
        return ()

    def _label_ids(self, features: Features) -> np.ndarray:
        """Returns the label id of each text or word, [n]."""
        return features.arrays["label_ids"]

    def _default_metrics(self) -> Any:
        return None

    def _is_single(self, x: Any) -> bool:
        """Returns whether `x` is one text and not several."""
        return is_single(x)

    def _served(self) -> Any:
        """Returns the `serving.served.Served` to export."""
        from bert_tf.serving.served import ServedTask

        return ServedTask(self.model, self.make_task(), self.is_pair)

    def _facts(self) -> dict[str, Any]:
        """Returns what a saved checkpoint records besides the weights."""
        recorded = {
            fact: getattr(self, name) for name, fact in self._recorded.items()
        }
        return {**self.make_task().facts(), **recorded}

    # Training.

    fit = fitting.fit

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
            norm 1. Each `fit` from epoch 0 resets it: the learning rate rises
            in the first tenth of the steps, then falls linearly towards 0.
          loss: "auto" is the loss of this kind of model, from logits.
          metrics: Keras's metrics of logits; "auto" for the usual ones.
          learning_rate: The highest learning rate, with optimizer="auto"; by
            default 5e-5.
          jit_compile: As in Keras, which by default compiles whole steps with
            XLA, except on PyTorch, and on TensorFlow with CPUs or a strategy.
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
            optimizer = fitting.default_optimizer(self)
        elif learning_rate is not None:
            raise InputError(
                "learning_rate is for optimizer='auto'. Pass it to the "
                "optimizer instead."
            )
        if "metrics" in self._auto_arguments:
            metrics = self._default_metrics()
        super().compile(
            optimizer=optimizer,
            # `compute_loss` computes the task's loss.
            loss=None if "loss" in self._auto_arguments else loss,
            metrics=metrics,
            jit_compile=jit_compile,
            **kwargs,
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
        """Updates Keras's metrics; elements that do not count weigh 0."""
        weights = self.make_task().element_weights(x)
        weights = times_rows(weights, sample_weight)
        return super().compute_metrics(x, y, y_pred, weights)

    def _maybe_symbolic_build(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing: `fit` has already built the model.

        Keras's version averages the replicas' first batches, which fails if
        their sizes differ.
        """

    def _arguments(
        self, is_training: bool, batch: Mapping[str, np.ndarray]
    ) -> tuple:
        """Returns the features, targets and weights of the rows of a step."""
        batch = self._drawn(batch, is_training)
        features = {n: x for n, x in batch.items() if n not in ONLY_IN_BATCHES}
        ones = np.ones(len(batch["input_ids"]), np.float32)
        weights = batch.get("sample_weight", ones)
        return features, self._targets(batch), weights

    # Evaluation.

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
    ) -> Any:
        """Returns the scripts' scores, Keras's loss and metrics, or both.

        The class decides: a `TokenTagger` returns the scripts' scores.

        Args:
          x: The texts, as for `fit`.
          y: The labels.
          batch_size: Batch size for examples of `max_seq_length`; batches of
            shorter ones are larger.
          sample_weight: The weight of each text in the loss, floats [n]. If it
            is passed, all models return the loss and metrics.
          verbose: Whether to show a progress bar, as in Keras; "auto" shows it
            if there are more than 8 batches.
          steps: Evaluates only the first `steps * batch_size` texts, or the
            first `steps` batches of a data set of batches.
          callbacks: A callback of Keras, or a list of them.
          return_dict: Whether to return a dict; otherwise a list.
        """
        if not self.compiled:
            self.compile()
        warn_if_random(self.model)
        data = Part(x, y, sample_weight)
        require_data(data, "steps", steps)
        positive_integer("batch_size", batch_size)
        data = whole(data, self._needs_labels, batch_size, steps)
        progress = Progress(self, "test", callbacks, verbose)
        scores = self._evaluated(data, batch_size, progress)
        return scores if return_dict else [*scores.values()]

    def _evaluated(
        self, data: Part, batch_size: int, progress: Progress
    ) -> dict[str, Any]:
        """Returns the scores of answers, or else of Keras; see `evaluate`."""
        scores = {}
        if self._compares_examples or data.weights is None:
            scores = self._scores(data, batch_size, progress)
            progress.end(scores)
        return scores or predict.keras_scores(
            self,
            weighted_features(self, data),
            batch_size,
            **progress.options,
        )

    # Prediction.

    def predict(
        self,
        x: Any,
        batch_size: int = 32,
        verbose: Any = "auto",
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Any:
        """Returns the answer for each text; see the class for its form.

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
        return predict.predict(self, x, batch_size, verbose, steps, callbacks)

    # Saving.

    def get_config(self) -> dict[str, Any]:
        arguments = {
            name: getattr(self, name)
            for name in inspect.signature(type(self)).parameters
            if name not in ("model", "tokenizer") and hasattr(self, name)
        }
        if "labels" in arguments:
            # JSON has no tuples.
            arguments["labels"] = list(self.labels)
        return {
            "name": self.name,
            "max_seq_length": self.max_seq_length,
            "model": keras.saving.serialize_keras_object(self.model),
            "vocabulary": list(self.tokenizer.vocabulary),
            **{name: getattr(self.tokenizer, name) for name in _OF_TOKENIZER},
            **arguments,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects=None) -> Self:
        config = dict(config)
        model = keras.saving.deserialize_keras_object(
            config.pop("model"), custom_objects=custom_objects
        )
        options = map(config.pop, ("vocabulary", *_OF_TOKENIZER))
        return cls(model, FullTokenizer(*options), **config)

    def make_encoding(self, kind: type[Kind], **fields: Any) -> Kind:
        """Returns an encoding with the model's tokenizer and sequence length.

        Args:
          kind: The class, a `TextEncoding`, such as `tasks.encoding.Encoding`.
          **fields: The fields that the class adds.
        """
        tokenizer = self.tokenizer
        most = self.model.config.max_position_embeddings
        if not 3 <= self.max_seq_length <= most:
            raise wrong_value(
                "max_seq_length",
                f"from 3 to {most}, the model's max_position_embeddings",
                self.max_seq_length,
            )
        return kind(
            tokenizer.vocabulary,
            tokenizer.do_lower_case,
            tokenizer.strip_accents,
            self.max_seq_length,
            **fields,
        )

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
        """Loads adapters written by `save_lora_weights`; labels must match.

        See `BertModel.load_lora_weights`. PEFT's files have no labels; the rows
        of the head in them must be in the order of the model's labels.
        """
        had_adapters = self.model.adapters()
        adapters.load(self.model, filepath, **self._lora_facts())
        if not had_adapters:
            renew_optimizer(self)

    def _lora_facts(self) -> dict[str, Any]:
        facts = self._facts()
        names = ("labels", "problem_type")
        return {n: facts[n] for n in names if facts[n] is not None}

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
    ) -> str:
        """Writes a SavedModel from strings to answers, as `--do_export` does.

        Needs Keras's TensorFlow backend.

        Args:
          filepath: The folder of all versions.
          name: The model's name on the server.
          version: The number of the version. By default the time in seconds, or
            one more than the highest existing number, if that is higher.

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
                f"{self.name} is quantized. Call export before quantize; for "
                "an int8 model, convert the export by convert_saved_model.py "
                "--format=onnx --int8 (not for masked words)."
            )
        warn_if_random(self.model)
        # Needs TensorFlow Text.
        from bert_tf.serving.export import export

        return export(
            self._served(),
            files.path_text(filepath, "filepath"),
            name=name,
            version=version,
        )
