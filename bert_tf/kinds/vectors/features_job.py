"""Writes BERT's vectors of texts to a file: the job of extract_features.py.

Its options and files are explained in features_options.py.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf.base import processes
from bert_tf.checkpoints.pretrained import fill
from bert_tf.data import pipeline
from bert_tf.data.batching import Features, Padding
from bert_tf.errors import in_file, wrong_value
from bert_tf.jobs import settings
from bert_tf.jobs.start import (
    Start,
    find_start,
    require_length,
    with_recorded,
)
from bert_tf.kinds.vectors import features as text_features
from bert_tf.kinds.vectors.features import Choice, TextFeatures
from bert_tf.kinds.vectors.features_options import FeaturesConfig
from bert_tf.kinds.vectors.task import pool
from bert_tf.modeling.encoder import BertModel
from bert_tf.serving.export import export, require_export_dir
from bert_tf.serving.served import Served, Tensors
from bert_tf.tasks.encoding import TextEncoding
from bert_tf.training.distribution import is_chief
from bert_tf.training.estimator import Estimator
from bert_tf.training.settings import TrainingConfig
from bert_tf.training.workers import by_chief, require_same_settings


@settings.precision_restored()
def run(config: FeaturesConfig) -> list[str]:
    """Writes the vectors of all texts, and exports the model.

    Returns:
      The paths that were written: the output file, the folder of exports.
    """
    config.check()
    start = find_start(config)
    are_chosen = config.layers is not None or config.pooling is not None
    if not config.input_file:
        # A recorded `doc_stride` is for the model's task, and not restored.
        length = start.trained_with.get("max_seq_length")
        recorded = config.init_checkpoint, {"max_seq_length": length}
        config = with_recorded(config, recorded)
    if config.layers is None:
        last = range(1, min(4, start.config.num_hidden_layers) + 1)
        layers = ",".join(f"-{number}" for number in last)
        config = dataclasses.replace(config, layers=layers)
    config = config.with_fallbacks()
    require_length(config.max_seq_length, start.config)
    if config.pooling == "cls" and start.config.is_left_to_right:
        raise wrong_value(
            "`pooling`",
            "mean or max for a left-to-right model, whose [CLS] attends only "
            "to itself",
            config.pooling,
        )
    choices = {}
    if config.input_file or are_chosen:
        choices = text_features.choose_layers(config.layers, start.config)
    strategy = settings.connect(config)
    inputs = {"`input_file`": [config.input_file]} if config.input_file else {}
    require_same_settings(strategy, start.facts(), inputs)
    if config.do_export:
        place = functools.partial(require_export_dir, config.export_dir)
        by_chief(strategy, place, "reserve `export_dir`")
    if config.input_file:
        _write_features(config, start, strategy, choices)
    if config.do_export:
        write = functools.partial(
            _export, config, start, choices if are_chosen else None
        )
        by_chief(strategy, write, "export the model")
    written = [config.output_file] if config.input_file else []
    return [*written, config.export_dir] if config.do_export else written


def _export(
    config: FeaturesConfig, start: Start, choices: Mapping[str, Choice] | None
) -> None:
    """Exports the chosen vectors, or by default two vectors of each text."""
    model = BertModel(start.config, output_hidden_states=True)
    fill(model, start)
    encoding = start.encoding(TextEncoding, config.max_seq_length)
    choose = pooled_and_mean
    if choices is not None:
        options = {"choices": choices, "pooling": config.pooling}
        choose = functools.partial(text_features.vectors, **options)
    served = ServedEncoder(model, encoding, choose)
    export(served, config.export_dir, source=start.init_checkpoint)


def _write_features(
    config: FeaturesConfig,
    start: Start,
    strategy: Any,
    choices: Mapping[str, Choice],
) -> None:
    """Computes the vectors of all texts; the chief writes them."""
    # Reading all texts first finds errors before anything is computed.
    count = sum(1 for _ in text_features.read_texts(config.input_file))
    if not count:
        raise in_file(config.input_file, "there is no text.")
    texts = _extract(config, start, strategy, choices)
    texts = processes.track(texts, lambda _: 1, "Computing", "texts", count)
    writer = contextlib.nullcontext(lambda text: None)
    if is_chief(strategy):
        open_writer = text_features.WRITERS[config.output_format]
        writer = open_writer(config.output_file, start.vocab)
    with writer as write:
        for text in texts:
            write(text)


def _extract(
    config: FeaturesConfig,
    start: Start,
    strategy: Any,
    choices: Mapping[str, Choice],
) -> Iterator[TextFeatures]:
    """Returns the features of every text, in order."""
    estimator = Estimator(
        text_features.VectorTask(start.config, choices, config.pooling),
        strategy,
        # Not compiled by default, because texts have many lengths.
        TrainingConfig(jit_compile=bool(settings.jit_compile(config))),
        None,
        lambda: start.weights,
    )
    is_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
    padding = Padding(static=is_tpu)

    def predict(features: Features) -> dict[str, np.ndarray]:
        data = functools.partial(
            pipeline.evaluation_batches,
            features,
            padding=padding,
            is_filled=is_tpu,
        )
        return estimator.predict(data, config.batch_size)

    is_pooled = config.pooling != "none"
    replicas = strategy.num_replicas_in_sync
    return text_features.extract(
        text_features.read_texts(config.input_file),
        start.encoding(TextEncoding, config.max_seq_length),
        predict,
        texts_at_a_time=text_features.how_many_at_a_time(
            choices,
            start.config,
            vectors_per_text=1 if is_pooled else config.max_seq_length,
            batch_size=-(-config.batch_size // replicas) * replicas,
        ),
        doc_stride=config.doc_stride,
        pooling=config.pooling,
    )


# The exported model.


def pooled_and_mean(
    outputs: Tensors, input_mask: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Returns two embeddings of each text, float32 [B, H].

    They are the `pooled_output` of [CLS], and the `mean` of the last layer, as
    `extract_features.py --layers=-1 --pooling=mean` computes it.
    """
    return {
        "pooled_output": pool(outputs, input_mask, "pooled"),
        "mean": pool(outputs, input_mask, "mean"),
    }


class ServedEncoder(Served):
    """Maps texts to embeddings.

    With embeddings of all tokens, answers also have `tokens`, strings [B, S],
    and `num_tokens`, int32 [B]; padding has the token "" and zeros.

    Args:
      model: A `BertModel`, built.
      encoding: How texts became ids in training.
      choose: Maps the outputs of the model and `input_mask`, int32 [B, S], to
        floats by name, [B, W], or [B, S, W] for embeddings of all tokens.
    """

    kind = "encoder"

    def __init__(
        self,
        model: keras.Model,
        encoding: TextEncoding,
        choose: Callable[..., dict[str, tf.Tensor]] = pooled_and_mean,
    ):
        super().__init__(model, encoding)
        self._choose = choose

    def answer_tokens(self, features: Tensors) -> dict[str, tf.Tensor]:
        """Returns the embeddings for rows of `INPUTS`, int32 [B, S]."""
        mask = features["input_mask"]
        chosen = self._choose(self.model(features), mask)
        if all(vectors.shape.rank == 2 for vectors in chosen.values()):
            return chosen
        names = self.token_names(features["input_ids"])
        return {
            "num_tokens": tf.reduce_sum(mask, axis=1),
            "tokens": tf.where(mask > 0, names, ""),
            **{
                name: text_features.fill_padding(vectors, mask, 0.0)
                for name, vectors in chosen.items()
            },
        }
