"""The flags that all fine-tuning scripts share, and what they turn into.

As in `bert_tf/flags.py`, TensorFlow is imported where it is needed: --help
shall not wait for it.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from bert_tf import flags as bert_flags
from bert_tf.errors import InputError

if TYPE_CHECKING:
    from bert_tf.config import BertConfig
    from bert_tf.data.bucketing import Padding
    from bert_tf.fine_tuning.runs import Schedule
    from bert_tf.training.settings import TrainingConfig

FLAGS = flags.FLAGS

# Lengths of batches where a program is compiled for each.
_LENGTHS = 4

# What a run may do, and the split of the data that it needs.
_SPLITS = {"do_train": "train", "do_eval": "dev", "do_predict": "test"}


def define_flags(max_seq_length: int = 128) -> None:
    """Defines what the fine-tuning scripts share, apart from their data.

    Args:
      max_seq_length: The default of that flag.
    """
    define_start_flags()
    flags.DEFINE_string("output_dir", None, "Folder of all that is written.")
    flags.DEFINE_bool(
        "overwrite_output_dir",
        False,
        "Whether to remove the run that lies in --output_dir.",
    )
    flags.DEFINE_integer(
        "max_seq_length",
        max_seq_length,
        "Most pieces of a sequence, [CLS] and [SEP] included.",
        lower_bound=3,
    )
    flags.DEFINE_bool("do_train", False, "Whether to train.")
    flags.DEFINE_bool("do_eval", False, "Whether to evaluate.")
    flags.DEFINE_bool("do_predict", False, "Whether to predict.")
    bert_flags.define_export_flags()
    flags.DEFINE_integer(
        "predict_batch_size",
        8,
        "Examples of one prediction batch.",
        lower_bound=1,
    )
    flags.DEFINE_float("num_train_epochs", 3.0, "Epochs; parts of one count.")
    flags.DEFINE_float(
        "warmup_proportion",
        0.1,
        "Share of the steps in which the rate rises to its peak.",
        lower_bound=0.0,
        upper_bound=1.0,
    )
    flags.DEFINE_enum(
        "padding",
        "auto",
        ["auto", "longest", "max_length"],
        "Length of a batch: that of its longest example, examples of one "
        "length being put together; or --max_seq_length always. auto is "
        "max_length on a TPU and longest elsewhere. Results are the same.",
    )
    _define_selection_flags()
    _define_layer_flags()


def define_start_flags() -> None:
    """Defines the checkpoint and what is known of it, for `find_start`."""
    flags.DEFINE_string(
        "init_checkpoint",
        None,
        "Checkpoint that the weights come from: a TF1 checkpoint, a Hugging "
        "Face folder, hf://OWNER/NAME, or a .keras file.",
    )
    flags.DEFINE_string(
        "bert_config_file",
        None,
        "JSON file of the model's shape, Google's or Hugging Face's; that of "
        "--init_checkpoint if it is not given.",
    )
    flags.DEFINE_string(
        "vocab_file",
        None,
        "Vocabulary; that of --init_checkpoint if it is not given.",
    )
    flags.DEFINE_bool(
        "do_lower_case",
        True,
        "Whether the vocabulary is an uncased one; as --init_checkpoint says "
        "if it is not given.",
    )
    flags.DEFINE_bool(
        "strip_accents",
        None,
        "Whether to drop accents; if it is not given, as --init_checkpoint "
        "says, else as --do_lower_case.",
    )


def _define_selection_flags() -> None:
    """Defines how often to train, and which model to keep."""
    flags.DEFINE_integer(
        "eval_steps",
        0,
        "Steps between evaluations while training; 0 for none, or for one "
        "an epoch with --save_best.",
        lower_bound=0,
    )
    flags.DEFINE_string(
        "save_best",
        None,
        "Metric, one of eval_results.txt: the weights of the evaluation that "
        "is best by it are kept and used, and the best of several trainings is "
        "the best by it. The first metric of the task decides between "
        "trainings if it is not given.",
    )
    flags.DEFINE_integer(
        "early_stopping_patience",
        0,
        "Evaluations without a better --save_best after which training stops; "
        "0 for never.",
        lower_bound=0,
    )
    flags.DEFINE_integer(
        "num_seeds",
        1,
        "Trainings, each with a seed of its own; the best is kept.",
        lower_bound=1,
    )
    flags.DEFINE_enum(
        "search",
        None,
        ["paper"],
        "paper: trains with batches of 16 and 32, rates of 5e-5, 3e-5 and "
        "2e-5, for 2, 3 and 4 epochs; the best is kept.",
    )


def _define_layer_flags() -> None:
    """Defines which layers learn, and how fast."""
    flags.DEFINE_integer(
        "num_frozen_layers",
        None,
        "Layers that keep their weights, counted from the embeddings, which "
        "keep theirs too: 0 freezes the embeddings alone.",
        lower_bound=0,
    )
    flags.DEFINE_float(
        "layer_rate_decay",
        1.0,
        "The rate of each layer, as a share of that of the layer above it.",
        lower_bound=0.0,
        upper_bound=1.0,
    )
    flags.DEFINE_bool(
        "gradient_checkpointing",
        False,
        "Whether activations are computed twice instead of kept.",
    )
    flags.DEFINE_bool(
        "bilstm_head",
        False,
        "Whether a new bidirectional LSTM stands between the encoder and the "
        "head; as the model has it, where none is trained.",
    )


def given(name: str) -> Any:
    """A flag's value if the command line has it, else None."""
    return FLAGS[name].value if FLAGS[name].present else None


def splits() -> list[str]:
    """The splits of the data that the run needs: "train", "dev", "test".

    An export alone needs none.

    Raises:
      InputError: There is nothing to do.
    """
    wanted = {split for flag, split in _SPLITS.items() if FLAGS[flag].value}
    if not wanted and not FLAGS.do_export:
        raise InputError(
            f"expected --{', --'.join([*_SPLITS, 'do_export'])}, or several "
            "of them. Received: none of them"
        )
    if FLAGS.do_train and selects():
        wanted.add("dev")  # Evaluation while training needs it, too.
    return [split for split in _SPLITS.values() if split in wanted]


def selects() -> bool:
    """Whether training needs a development set, to choose by it."""
    return bool(
        FLAGS.eval_steps
        or FLAGS.save_best
        or FLAGS.search
        or FLAGS.num_seeds > 1
    )


def schedule(metrics: Sequence[str]) -> "Schedule":
    """How long to train, how often, and what to keep.

    Args:
      metrics: The names that --save_best may have; "eval_" may be left out.

    Raises:
      InputError: It has another, or there is none where one has to decide.
    """
    from bert_tf.fine_tuning.runs import Schedule

    metric = FLAGS.save_best
    if metric is not None and metric not in metrics:
        metric = f"eval_{metric}"
    if metric is not None and metric not in metrics:
        raise InputError(
            f"expected --save_best among {', '.join(metrics)}. Received: "
            f"{FLAGS.save_best}"
        )
    if FLAGS.early_stopping_patience and metric is None:
        raise InputError(
            "expected --save_best with --early_stopping_patience: by which "
            "metric? Received: none"
        )
    return Schedule(
        num_train_epochs=FLAGS.num_train_epochs,
        warmup_proportion=FLAGS.warmup_proportion,
        eval_steps=FLAGS.eval_steps,
        save_best=metric,
        early_stopping_patience=FLAGS.early_stopping_patience,
        num_seeds=FLAGS.num_seeds,
        search=FLAGS.search,
        log_steps=FLAGS.log_steps,
    )


def training_config(config: "BertConfig") -> "TrainingConfig":
    """How to train; the number of steps follows from the data."""
    from bert_tf.training.rate_multipliers import layerwise_rates

    rates = layerwise_rates(config.num_hidden_layers, FLAGS.layer_rate_decay)
    return dataclasses.replace(
        bert_flags.training_config(num_train_steps=1, num_warmup_steps=0),
        rate_multipliers=rates if FLAGS.layer_rate_decay != 1 else (),
    )


def padding(strategy: Any) -> "Padding":
    """The length of batches that --padding asks for on these devices."""
    import tensorflow as tf

    from bert_tf.data.bucketing import Padding
    from bert_tf.training.distribution import should_compile

    is_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
    if FLAGS.padding == "longest" and is_tpu:
        raise InputError(
            "expected --padding=auto or max_length on a TPU, whose programs "
            "have fixed shapes. Received: longest"
        )
    if FLAGS.padding == "max_length" or (FLAGS.padding == "auto" and is_tpu):
        return Padding(static=True)
    if should_compile(strategy, bert_flags.jit_compile()):
        # XLA compiles every length anew: there shall be a few of them.
        return Padding(multiple=math.ceil(FLAGS.max_seq_length / _LENGTHS))
    return Padding(multiple=1)


def frozen_layers(config: "BertConfig") -> list[str]:
    """The names of the layers that --num_frozen_layers freezes.

    Raises:
      InputError: There are not that many.
    """
    number = FLAGS.num_frozen_layers
    if number is None:
        return []
    if number > config.num_hidden_layers:
        raise InputError(
            f"expected --num_frozen_layers up to {config.num_hidden_layers}, "
            f"the layers of the model. Received: {number}"
        )
    return ["embeddings", *(f"layer_{layer}" for layer in range(number))]
