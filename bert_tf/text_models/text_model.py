"""`TextModel`: the base class of the models from strings to answers."""

import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

import keras

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
from bert_tf.config import positive_integer
from bert_tf.errors import InputError, shortened, wrong_value
from bert_tf.modeling.dense import dense_layers
from bert_tf.modeling.feature_model import FeatureModel, renew_optimizer
from bert_tf.modeling.transformer import LORA_TARGETS
from bert_tf.tasks.encoding import Encoding, TextEncoding
from bert_tf.tasks.task import FineTuningTask
from bert_tf.text_models.training import TrainableTextModel
from bert_tf.tokenization.vocabulary_file import load_vocab, require_fit
from bert_tf.tokenization.wordpiece import FullTokenizer

Kind = TypeVar("Kind", bound=TextEncoding)

# Advice for a model whose classes share a label.
NAME_THE_CLASSES = (
    "Pass labels=[...], a name for each class, in the order of the logits."
)


class TextModel(TrainableTextModel):
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
        defaults = cls._recorded_options(pretrained)
        return cls(model, tokenizer, **{**defaults, **own})

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

    def _served(self) -> Any:
        """Returns the `serving.served.Served` to export."""
        from bert_tf.serving.served import ServedTask

        return ServedTask(self.model, self.make_task())

    def _facts(self) -> dict[str, Any]:
        """Returns what a saved checkpoint records besides the weights."""
        recorded = {
            fact: getattr(self, name) for name, fact in self._recorded.items()
        }
        return {**self.make_task().facts(), **recorded}

    def call(self, inputs, training=False):
        """Maps features, int32 [B, S], to logits; used by `fit`."""
        return self.model(inputs, training=training)["logits"]

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
            "model": keras.saving.serialize_keras_object(self.model),
            "vocabulary": list(self.tokenizer.vocabulary),
            "do_lower_case": self.tokenizer.do_lower_case,
            "strip_accents": self.tokenizer.strip_accents,
            "max_seq_length": self.max_seq_length,
            **arguments,
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

    def _unlabelled_encoding(self) -> Encoding:
        """Returns the encoding of examples whose label is not used."""
        return self.make_encoding(Encoding, problem="regression", labels=())

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
          version: The number of the version. By default the time in seconds,
            or the number after the highest that exists, if it is higher.

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
