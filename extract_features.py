"""Writes BERT's vectors of texts into a file, for other models to learn from.

    python extract_features.py \\
        --input_file=/tmp/input.txt --output_file=/tmp/output.jsonl \\
        --init_checkpoint=uncased_L-12_H-768_A-12/bert_model.ckpt \\
        --layers=-1,-2,-3,-4 --max_seq_length=128

--input_file has a text a line, or a pair as `first ||| second`. The output is
in the same order: the original's JSON lines, with every token's vectors, or,
many times smaller, --output_format=npz or tfrecord. --pooling=mean gives one
vector a text; --layers also takes names, such as concat_last_four. The
configuration, the vocabulary and the casing are the checkpoint's own, or those
that --bert_config_file, --vocab_file and --do_lower_case name.

--do_export --export_dir=DIR writes a SavedModel for TensorFlow Serving, which
takes texts and gives the vectors that --layers and --pooling name or, without
them, two of each text; --input_file is not needed for that.
Source: `extract_features.py` of google-research/bert; section 5.3 of the paper.
"""

# Before anything that imports TensorFlow.
import bert_tf.quiet_tensorflow  # noqa: F401

# isort: split
import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import flags

from bert_tf import files
from bert_tf import flags as bert_flags
from bert_tf.config import BertConfig
from bert_tf.data import progress
from bert_tf.data.text_encoding import TextEncoding
from bert_tf.errors import InputError
from bert_tf.feature_tagger import CHOICES, Choice
from bert_tf.fine_tuning import command_line, places
from bert_tf.fine_tuning.start import Start, find_start, require_length
from bert_tf.interop.loading import load_checkpoint
from bert_tf.modeling import BertModel
from bert_tf.serving.export import check_place, export
from bert_tf.serving.pretrained_models import ServedEncoder
from bert_tf.tasks import feature_extraction
from bert_tf.tasks.feature_extraction import POOLINGS, Compute, TextFeatures
from bert_tf.tasks.feature_files import WRITERS
from bert_tf.training.distribution import exchange, is_chief, is_plain
from bert_tf.training.workers import (
    by_chief,
    lost_workers_told,
    require_same_settings,
    require_same_weights,
)

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "input_file", None, "Text, UTF-8: a text or `first ||| second` a line."
)
flags.DEFINE_string("output_file", None, "The file to write.")
flags.DEFINE_enum(
    "output_format",
    "jsonl",
    sorted(WRITERS),
    "jsonl: the original's, 32 kB a token of BERT-Base; npz: for numpy.load; "
    "tfrecord.",
)
flags.DEFINE_string(
    "layers",
    "-1,-2,-3,-4",
    "Layers: numbers (0 the first, -1 the last), layer_0 and so on, "
    f"{', '.join(CHOICES)}, or all.",
)
flags.DEFINE_enum(
    "pooling",
    "none",
    list(POOLINGS),
    "Each token's vector; or one of each text: that of [CLS], or the mean or "
    "maximum over its tokens, [CLS] and [SEP] included.",
)
flags.DEFINE_integer(
    "max_seq_length",
    128,
    "Most pieces of a text, [CLS] and [SEP] included; longer ones are cut.",
    lower_bound=3,
)
flags.DEFINE_integer(
    "batch_size",
    32,
    "Texts of --max_seq_length in a batch; shorter ones are more.",
    lower_bound=1,
)
flags.DEFINE_bool(
    "use_one_hot_embeddings",
    False,
    "Accepted for old command lines; the vectors are the same.",
)
bert_flags.define_export_flags()
command_line.define_start_flags()
bert_flags.define_device_flags()


def main() -> None:
    """Reads, computes and writes, some texts at a time; exports the model."""
    _check_flags()
    start = find_start(
        FLAGS.init_checkpoint,
        FLAGS.bert_config_file,
        FLAGS.vocab_file,
        command_line.given("do_lower_case"),
        FLAGS.strip_accents,
    )
    if not FLAGS.input_file:
        places.take_recorded((FLAGS.init_checkpoint, start.trained_with))
    require_length(FLAGS.max_seq_length, start.config)
    _require_pooling(start.config)
    choices = {}
    if FLAGS.input_file or _are_chosen():
        choices = feature_extraction.choose_layers(FLAGS.layers, start.config)
    strategy = bert_flags.connect()
    _compare_workers(strategy, start)
    if FLAGS.do_export:
        place = functools.partial(check_place, FLAGS.export_dir)
        by_chief(strategy, place, "take --export_dir")
    if FLAGS.input_file:
        _write_features(start, strategy, choices)
    if FLAGS.do_export:
        write = functools.partial(_export, start, choices)
        by_chief(strategy, write, "export the model")


def _compare_workers(strategy: Any, start: Start) -> None:
    settings = {
        "config": start.config.to_dict(),
        "vocabulary": start.vocab,
        "do_lower_case": start.do_lower_case,
        "strip_accents": start.strip_accents,
    }
    inputs = {"--input_file": [FLAGS.input_file]} if FLAGS.input_file else {}
    require_same_settings(strategy, settings, inputs)


def _check_flags() -> None:
    """Sees that there is something to do, and a place for what it gives."""
    needed = {"input_file", "output_file"}
    given = {name for name in needed if FLAGS[name].value}
    if given != needed and (given or not FLAGS.do_export):
        missing = ", ".join(f"--{name}" for name in sorted(needed - given))
        raise InputError(
            "expected --input_file and --output_file, or --do_export alone. "
            f"Received: no {missing}"
        )
    if FLAGS.do_export and not FLAGS.export_dir:
        raise InputError(
            "expected --export_dir with --do_export. Received: none"
        )
    if given:
        files.check_outputs(
            {"output file": [FLAGS.output_file]},
            {"input file": [FLAGS.input_file]},
        )


def _require_pooling(config: BertConfig) -> None:
    if FLAGS.pooling == "cls" and config.is_left_to_right:
        raise InputError(
            "expected --pooling=mean or max for a model that looks to the left "
            "alone, whose [CLS] sees nothing but itself. Received: cls"
        )


def _are_chosen() -> bool:
    """Whether the command line says which vectors it wants."""
    return any(map(command_line.given, ("layers", "pooling")))


def _export(start: Start, choices: Mapping[str, Choice]) -> None:
    served = _served(start, choices)
    export(served, FLAGS.export_dir, source=start.init_checkpoint)


def _served(start: Start, choices: Mapping[str, Choice]) -> ServedEncoder:
    """The model, with the vectors that are chosen, or two of each text."""
    model = BertModel(start.config, output_hidden_states=True)
    load_checkpoint(model, start.init_checkpoint)
    if not _are_chosen():
        return ServedEncoder(model, _encoding(start))
    choose = functools.partial(
        feature_extraction.vectors, choices=choices, pooling=FLAGS.pooling
    )
    return ServedEncoder(model, _encoding(start), choose)


@lost_workers_told()
def _write_features(
    start: Start, strategy: Any, choices: Mapping[str, Choice]
) -> None:
    """Computes the vectors of all texts; of several workers, one writes."""
    # What is at fault shows before anything is computed.
    count = sum(1 for _ in feature_extraction.read_texts(FLAGS.input_file))
    if not count:
        raise InputError(
            "expected a text or more in --input_file. Received: "
            f"{FLAGS.input_file}, which is empty"
        )
    with strategy.scope():
        model = BertModel(start.config, output_hidden_states=True)
        load_checkpoint(model, start.init_checkpoint)
    require_same_weights(strategy, {v.path: v for v in model.variables})
    texts = _extract(model, strategy, choices, _encoding(start))
    with _writer(start, is_chief(strategy)) as write:
        for text in progress.track(
            texts, lambda _: 1, "Computing", "texts", count
        ):
            write(text)


def _writer(start: Start, writes: bool) -> Any:
    """Gives what takes the features of a text."""
    if not writes:
        return contextlib.nullcontext(lambda text: None)
    return WRITERS[FLAGS.output_format](FLAGS.output_file, start.vocab)


def _encoding(start: Start) -> TextEncoding:
    return TextEncoding(
        start.vocab,
        start.do_lower_case,
        start.strip_accents,
        FLAGS.max_seq_length,
    )


def _extract(
    model: BertModel,
    strategy: Any,
    choices: Mapping[str, Choice],
    encoding: TextEncoding,
) -> Iterator[TextFeatures]:
    """The features of every text, in order."""
    replicas = strategy.num_replicas_in_sync
    batch_size = -(-FLAGS.batch_size // replicas) * replicas
    is_pooled = FLAGS.pooling != "none"
    is_tpu = _is_tpu(strategy)
    return feature_extraction.extract(
        feature_extraction.read_texts(FLAGS.input_file),
        encoding,
        _on_devices(
            _program(model, strategy, choices),
            strategy,
            batch_size if is_tpu else replicas,
        ),
        batch_size=batch_size,
        texts_at_a_time=feature_extraction.how_many_at_a_time(
            choices,
            model.config,
            places=1 if is_pooled else FLAGS.max_seq_length,
            batch_size=batch_size,
        ),
        multiple=FLAGS.max_seq_length if is_tpu else 8,
    )


def _program(
    model: BertModel, strategy: Any, choices: Mapping[str, Choice]
) -> Any:
    """The model as a function of a batch, compiled once for all shapes."""

    def compute(features):
        return feature_extraction.vectors(
            model(features, training=False),
            features["input_mask"],
            choices,
            FLAGS.pooling,
        )

    any_shape = tf.TensorSpec([None, None], tf.int32)
    names = ("input_ids", "input_mask", "segment_ids")
    return tf.function(
        compute,
        None if _is_tpu(strategy) else [dict.fromkeys(names, any_shape)],
        # Layers are no code for AutoGraph.
        autograph=False,
        # See `Estimator`: replicas would have it all on one device.
        jit_compile=is_plain(strategy) and bool(bert_flags.jit_compile()),
    )


def _on_devices(program: Any, strategy: Any, multiple: int) -> Compute:
    """Shares batches out to the replicas, and joins what they give.

    Args:
      program: See `_program`.
      strategy: The devices.
      multiple: Batches are filled up to a multiple of so many texts.
    """
    if is_plain(strategy):
        return lambda batch: {k: v.numpy() for k, v in program(batch).items()}
    # A TPU asks for the program itself. Elsewhere that would be called with
    # all shares at once, which have no shape.
    run = program if _is_tpu(strategy) else lambda share: program(share)
    tell_all = exchange(strategy)

    def compute(batch):
        count = len(batch["input_ids"])
        missing = [(0, -count % multiple), (0, 0)]
        batch = {name: np.pad(rows, missing) for name, rows in batch.items()}
        kept = strategy.run(run, (_shares(batch, strategy),))
        local = strategy.experimental_local_results
        own = {
            name: np.concatenate([x.numpy() for x in local(value)])
            for name, value in kept.items()
        }
        return {
            name: np.concatenate(tell_all(rows))[:count]
            for name, rows in own.items()
        }

    return compute


def _shares(batch: Mapping[str, np.ndarray], strategy: Any) -> Any:
    """Equal parts of a batch, one for each replica."""
    parts = {
        name: np.split(rows, strategy.num_replicas_in_sync)
        for name, rows in batch.items()
    }
    return strategy.experimental_distribute_values_from_function(
        lambda context: {
            name: tf.constant(part[context.replica_id_in_sync_group])
            for name, part in parts.items()
        }
    )


def _is_tpu(strategy: Any) -> bool:
    """Whether programs are compiled for one shape, which all batches have."""
    return isinstance(strategy, tf.distribute.TPUStrategy)


if __name__ == "__main__":
    bert_flags.run(main, required=["init_checkpoint"])
