"""Pre-trains BERT: masked words and the next sentence.

    python run_pretraining.py \\
        --input_file=/tmp/tf_examples.tfrecord \\
        --eval_input_file=/tmp/held_out.tfrecord \\
        --bert_config_file=bert_config.json \\
        --vocab_file=vocab.txt \\
        --output_dir=/tmp/pretraining_output \\
        --do_train --do_eval \\
        --max_seq_length=128 --max_predictions_per_seq=20 \\
        --train_batch_size=32 --learning_rate=1e-4 \\
        --num_train_steps=20 --num_warmup_steps=10

Records come from create_pretraining_data.py, ours or the original's. The
output directory then holds the training checkpoints `model.ckpt-STEP`, which
the same command resumes from, TensorBoard's event files, `evaluations.jsonl`
where --eval_steps asks for it, `eval_results.txt`, and `release/`: the weights
alone as `bert_model.ckpt`, with `bert_config.json` and `vocab.txt`, ready for
fine-tuning. --do_export writes a SavedModel for TensorFlow Serving, which fills
in the blanks of a text, into `export/`.
"""

import dataclasses
import functools
import os
import secrets
from collections.abc import Callable

from absl import flags, logging

import bert_tf.quiet_tensorflow  # noqa: F401
from bert_tf import files
from bert_tf import flags as bert_flags
from bert_tf.config import BertConfig
from bert_tf.data import creation, pipeline, records
from bert_tf.data.salvage import Salvage, salvage, way_out_told
from bert_tf.data.sequence_packing import SequencePacking
from bert_tf.data.text_encoding import TextEncoding
from bert_tf.errors import InputError
from bert_tf.fine_tuning import places
from bert_tf.fine_tuning.exports import export_kept
from bert_tf.fine_tuning.runs import RELEASE
from bert_tf.fine_tuning.start import require_length
from bert_tf.interop.companions import with_companions, write_companions
from bert_tf.interop.loading import load_config
from bert_tf.interop.opening import (
    FORMATS,
    open_pretrained,
    open_weights,
    read_config,
)
from bert_tf.interop.pretrained import Pretrained
from bert_tf.serving.export import check_place
from bert_tf.serving.pretrained_models import ServedMaskedLM
from bert_tf.tasks.pretraining import PretrainingTask
from bert_tf.text.wordpiece import load_vocab, require_fit
from bert_tf.training.checkpoints import CheckpointManager
from bert_tf.training.distribution import is_chief
from bert_tf.training.estimator import Estimator
from bert_tf.training.hooks import Evaluation, Hook, Progress, Summaries
from bert_tf.training.results import write_results
from bert_tf.training.settings import TrainingConfig

FLAGS = flags.FLAGS

# Of these the log says how full rows are, packed and unpacked.
EXAMPLES_TO_MEASURE = 4096

flags.DEFINE_string(
    "bert_config_file",
    None,
    "JSON file of the model's shape, Google's or Hugging Face's; that of "
    "--init_checkpoint if it is not given.",
)
flags.DEFINE_string(
    "input_file", None, "TFRecord files to train on; a comma list of globs."
)
flags.DEFINE_string(
    "eval_input_file",
    None,
    "TFRecord files to evaluate on; --input_file if it is not given, as in "
    "the original.",
)
flags.DEFINE_string("output_dir", None, "Directory of checkpoints and results.")
flags.DEFINE_string(
    "init_checkpoint",
    None,
    f"Checkpoint whose weights training starts from: {FORMATS}.",
)
flags.DEFINE_string(
    "vocab_file", None, "Vocabulary; a copy goes beside the released weights."
)
flags.DEFINE_integer(
    "max_seq_length", 128, "Length of the records.", lower_bound=1
)
flags.DEFINE_integer(
    "max_predictions_per_seq",
    20,
    "Masked positions of the records.",
    lower_bound=1,
)
flags.DEFINE_bool("do_train", False, "Whether to train.")
flags.DEFINE_bool("do_eval", False, "Whether to evaluate.")
bert_flags.define_export_flags()
flags.DEFINE_integer("num_train_steps", 100_000, "Step to train up to.")
flags.DEFINE_integer("num_warmup_steps", 10_000, "Steps of linear warm-up.")
flags.DEFINE_integer(
    "stop_at_step",
    0,
    "Step to stop at, for the first phase of a run: the rate falls until "
    "--num_train_steps, which a second command goes on to; 0 for no phases.",
)
flags.DEFINE_bool(
    "pack_sequences",
    False,
    "Whether short examples share a row of --max_seq_length: the same losses, "
    "less padding. What --train_batch_size and --eval_batch_size count are "
    "rows then; the log says how many examples that is.",
)
flags.DEFINE_integer(
    "max_eval_steps",
    100,
    "Most evaluation batches; 0 for all there are.",
    lower_bound=0,
)
flags.DEFINE_integer(
    "eval_steps",
    0,
    "Steps between evaluations while training; 0 for none.",
    lower_bound=0,
)
flags.DEFINE_bool(
    "skip_corrupt_records",
    False,
    "Whether to do without what is damaged in the record files, which are read "
    "through before: the log and the results say how much it is.",
)
flags.DEFINE_bool(
    "next_sentence", True, "Whether to train the next-sentence objective."
)
bert_flags.define_training_flags()
bert_flags.define_device_flags()


@way_out_told()
def main() -> None:
    """Reads the flags, trains, evaluates, releases and exports the weights."""
    config = _read_config()
    if FLAGS.do_export and not FLAGS.do_train:
        _take_recorded()
    _check_flags(config)
    settings = _settings()
    train_files, eval_files = _record_files()
    _check_output_dir()
    encoding = _encoding(train_files) if FLAGS.do_export else None
    strategy = bert_flags.connect()
    task = PretrainingTask(
        config,
        FLAGS.max_seq_length,
        FLAGS.max_predictions_per_seq,
        FLAGS.next_sentence,
    )
    salvaged = _look_through(train_files, eval_files)
    training_data, evaluation_data = _data_sets(
        task, train_files, eval_files, salvaged
    )
    with pipeline.input_errors([*train_files, *eval_files]):
        if FLAGS.do_eval or FLAGS.eval_steps > 0:
            # It reads them through: their faults show before training, too.
            evaluation_data(batch_size=FLAGS.eval_batch_size)
        estimator = Estimator(
            task,
            strategy,
            settings,
            FLAGS.output_dir,
            FLAGS.init_checkpoint,
            functools.partial(open_weights, config=config),
        )
        _require_weights(estimator)
        files.makedirs(FLAGS.output_dir)
        if encoding is not None:
            check_place(bert_flags.export_dir())
        if FLAGS.do_train:
            evaluate = functools.partial(estimator.evaluate, evaluation_data)
            hooks = _hooks(
                evaluate,
                settings.last_step,
                _examples_per_row(task, train_files, salvaged),
                writes=is_chief(strategy),
            )
            estimator.train(training_data, hooks)
        metrics = estimator.evaluate(evaluation_data) if FLAGS.do_eval else None
    if FLAGS.do_train and is_chief(strategy):
        _release(estimator, config, train_files)
    if metrics is not None and is_chief(strategy):
        path = os.path.join(FLAGS.output_dir, "eval_results.txt")
        write_results(path, {**metrics, **salvaged.results})
    if encoding is not None:
        export_kept(
            estimator,
            functools.partial(ServedMaskedLM, encoding=encoding),
            bert_flags.export_dir(),
            name="bert",
            metrics=metrics,
            source=FLAGS.init_checkpoint,
        )


def _settings() -> TrainingConfig:
    """How to train."""
    settings = bert_flags.training_config(
        FLAGS.num_train_steps, FLAGS.num_warmup_steps
    )
    return dataclasses.replace(settings, stop_at_step=FLAGS.stop_at_step)


def _record_files() -> tuple[list[str], list[str]]:
    """The files to train on, and those to evaluate on."""
    train_files = files.expand(FLAGS.input_file, "input_file")
    if not FLAGS.eval_input_file:
        return train_files, train_files
    return train_files, files.expand(FLAGS.eval_input_file, "eval_input_file")


def _look_through(train_files: list[str], eval_files: list[str]) -> Salvage:
    """Finds what of damaged files can be read, with --skip_corrupt_records.

    Without it a file that is cut off is an error where that costs little to
    see: it shall not show after days of training.
    """
    if FLAGS.skip_corrupt_records:
        return salvage(list(dict.fromkeys([*train_files, *eval_files])))
    for file in train_files:
        if not files.is_remote(file) and not file.endswith(".gz"):
            records.count_records(file)
    return Salvage()


def _data_sets(
    task: PretrainingTask,
    train_files: list[str],
    eval_files: list[str],
    salvaged: Salvage,
) -> tuple[Callable, Callable]:
    """What makes the batches to train on, and those to evaluate on."""
    packing = SequencePacking() if FLAGS.pack_sequences else None
    training_data = functools.partial(
        pipeline.training_dataset,
        train_files,
        task.schema,
        seed=FLAGS.random_seed,
        vocab_size=task.config.vocab_size,
        packing=packing,
        stretches=salvaged.stretches,
    )
    evaluation_data = functools.partial(
        pipeline.evaluation_dataset,
        eval_files,
        task.schema,
        max_examples=FLAGS.max_eval_steps * FLAGS.eval_batch_size or None,
        vocab_size=task.config.vocab_size,
        packing=packing,
        stretches=salvaged.stretches,
    )
    return training_data, evaluation_data


def _examples_per_row(
    task: PretrainingTask, train_files: list[str], salvaged: Salvage
) -> float:
    """How many examples share a row on average, which is logged; else 1."""
    if not FLAGS.pack_sequences:
        return 1.0
    fill = pipeline.fill(
        train_files,
        task.schema,
        SequencePacking(),
        EXAMPLES_TO_MEASURE,
        stretches=salvaged.stretches,
    )
    logging.info(
        "Packing: of %d examples, tokens fill %.1f %% of a row each, and "
        "%.1f %% of the rows that they share, %.2f to a row. An update of "
        "--train_batch_size=%d rows has about %.0f examples",
        fill.examples,
        100 * fill.unpacked,
        100 * fill.packed,
        fill.examples_per_row,
        FLAGS.train_batch_size,
        FLAGS.train_batch_size * fill.examples_per_row,
    )
    return fill.examples_per_row


def _read_config() -> BertConfig:
    """The flag's, or that of the checkpoint to start from."""
    if FLAGS.bert_config_file:
        return read_config(FLAGS.bert_config_file)
    if FLAGS.init_checkpoint:
        return load_config(FLAGS.init_checkpoint)
    raise InputError(
        "expected --bert_config_file, or --init_checkpoint with a "
        "configuration of its own. Received: neither"
    )


def _take_recorded() -> None:
    """Exported is a model with the length that it was trained with."""
    path, known = FLAGS.init_checkpoint, {}
    if CheckpointManager(FLAGS.output_dir).steps():
        # It goes before the one that training started from.
        path = os.path.join(FLAGS.output_dir, RELEASE)
        known = with_companions(Pretrained(path, {}), path).trained_with
    elif path:
        known = open_pretrained(path).trained_with
    places.take_recorded((path, known))


def _check_flags(config: BertConfig) -> None:
    """Compares the flags with each other and with the files they name."""
    if not (FLAGS.do_train or FLAGS.do_eval or FLAGS.do_export):
        raise InputError(
            "expected --do_train, --do_eval or --do_export. Received: none of "
            "them"
        )
    require_length(FLAGS.max_seq_length, config)
    if FLAGS.vocab_file:
        vocab = load_vocab(FLAGS.vocab_file)
        require_fit(vocab, config.vocab_size, FLAGS.vocab_file)


def _check_output_dir() -> None:
    """Sees whether files can be written there; makes nothing."""
    if not files.exists(FLAGS.output_dir):
        return
    if not files.is_directory(FLAGS.output_dir):
        raise InputError(
            "expected --output_dir to be a directory, or new. Received: the "
            f"file {FLAGS.output_dir}"
        )
    # A name of its own: other workers try the same, perhaps in this place.
    probe = os.path.join(FLAGS.output_dir, f".writable-{secrets.token_hex(4)}")
    with files.atomic_writer(probe):
        pass
    files.remove(probe)


def _require_weights(estimator: Estimator) -> None:
    """Raises InputError if random weights would be evaluated or exported."""
    if FLAGS.do_train:
        return
    wish = {"evaluate": FLAGS.do_eval, "export": FLAGS.do_export}
    purpose = "to " + " and ".join(name for name in wish if wish[name])
    if estimator.weights_from is None:
        raise InputError(
            f"expected a checkpoint in --output_dir={FLAGS.output_dir}, or "
            f"--init_checkpoint, {purpose}. Received: neither"
        )
    if estimator.random_variables:
        raise InputError(
            "expected a checkpoint with both pre-training heads, "
            f"{purpose}. Received: {estimator.weights_from}, which lacks "
            f"{estimator.random_variables[0]}"
        )


def _hooks(
    evaluate: Callable[[], dict],
    last_step: int,
    examples_per_row: float,
    writes: bool,
) -> list[Hook]:
    """What watches the run.

    Args:
      evaluate: Gives the metrics; all processes have to call it.
      last_step: Where training ends.
      examples_per_row: How many examples one of the batch's rows has.
      writes: Whether this process is the one that tells what happens.
    """
    hooks: list[Hook] = []
    if writes:
        hooks.append(Progress(last_step, FLAGS.log_steps))
    if writes and FLAGS.log_steps > 0:
        hooks.append(
            Summaries(
                FLAGS.output_dir,
                FLAGS.log_steps,
                examples_per_step=FLAGS.train_batch_size * examples_per_row,
                tokens_per_example=FLAGS.max_seq_length / examples_per_row,
            )
        )
    if FLAGS.eval_steps > 0:
        hooks.append(
            Evaluation(
                evaluate,
                FLAGS.output_dir,
                every=FLAGS.eval_steps,
                last_step=last_step,
                writes=writes,
            )
        )
    return hooks


def _release(
    estimator: Estimator, config: BertConfig, train_files: list[str]
) -> None:
    """Writes what fine-tuning starts from, laid out as Google's releases."""
    folder = os.path.join(FLAGS.output_dir, RELEASE)
    files.makedirs(folder)
    prefix = os.path.join(folder, "bert_model.ckpt")
    estimator.export_weights(prefix)
    vocab = None
    if FLAGS.vocab_file:
        vocab = tuple(load_vocab(FLAGS.vocab_file))
    else:
        logging.warning(
            "%s has no vocab.txt: give --vocab_file, or put it there", folder
        )
    casing = creation.casing_of(train_files)
    facts = {**casing, **places.trained_with()}
    write_companions(folder, Pretrained(prefix, {}, config, vocab, **facts))


def _encoding(train_files: list[str]) -> TextEncoding:
    """How the texts of the records became ids.

    Raises:
      InputError: Nobody says so.
    """
    casing = creation.casing_of(train_files)
    if not FLAGS.vocab_file or not casing:
        missing = "casing" if FLAGS.vocab_file else "vocabulary"
        raise InputError(
            "expected --vocab_file, and records with the manifest that "
            "create_pretraining_data.py writes, with --do_export, whose model "
            f"takes texts. Received: no {missing}; export the release by "
            "fill_mask.py --do_export"
        )
    return TextEncoding(
        tuple(load_vocab(FLAGS.vocab_file)),
        max_seq_length=FLAGS.max_seq_length,
        **casing,
    )


if __name__ == "__main__":
    bert_flags.run(main, required=["input_file", "output_dir"])
