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
the same command resumes from, `pretraining.json`, by which another kind of
model is refused there, TensorBoard's event files, `evaluations.jsonl` where
--eval_steps asks for it, `eval_results.txt`, and `release/`: the weights alone
as `bert_model.ckpt`, with `bert_config.json` and `vocab.txt`, ready for
fine-tuning. --do_export writes a SavedModel for TensorFlow Serving, which fills
in the blanks of a text, into `export/`.
"""

import dataclasses
import functools
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from absl import flags, logging

import bert_tf.quiet_tensorflow  # noqa: F401
from bert_tf import files
from bert_tf import flags as bert_flags
from bert_tf.config import ATTENTION_DIRECTIONS, BertConfig
from bert_tf.data import creation, pipeline
from bert_tf.data.pretraining_data import PretrainingData, look_through
from bert_tf.data.salvage import way_out_told
from bert_tf.data.text_encoding import TextEncoding
from bert_tf.errors import InputError
from bert_tf.fine_tuning import output_folder, places, pretraining_folder
from bert_tf.fine_tuning.exports import export_kept
from bert_tf.fine_tuning.runs import RELEASE
from bert_tf.fine_tuning.start import require_length
from bert_tf.interop.companions import with_companions, write_companions
from bert_tf.interop.loading import find_config
from bert_tf.interop.opening import (
    FORMATS,
    open_pretrained,
    open_weights,
)
from bert_tf.interop.pretrained import Pretrained
from bert_tf.serving.export import check_place
from bert_tf.serving.pretrained_models import ServedMaskedLM
from bert_tf.tasks.pretraining import OBJECTIVES, PretrainingTask
from bert_tf.text.wordpiece import load_vocab, require_fit
from bert_tf.training.checkpoints import CheckpointManager
from bert_tf.training.distribution import is_chief
from bert_tf.training.estimator import Estimator
from bert_tf.training.hooks import Evaluation, Hook, Progress, Summaries
from bert_tf.training.results import write_results
from bert_tf.training.settings import TrainingConfig
from bert_tf.training.workers import by_chief, require_same_settings

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "bert_config_file",
    None,
    "JSON file of the model's shape, Google's or Hugging Face's; that of "
    "--init_checkpoint if it is not given.",
)
flags.DEFINE_string(
    "model_size",
    None,
    "In the place of --bert_config_file: a published size, base or L-4_H-256 "
    "or L-3_H-768_A-12, with the words of --vocab_file.",
)
flags.DEFINE_enum(
    "attention_direction",
    None,
    ATTENTION_DIRECTIONS,
    "What a token looks at: all others, or those before it; as the "
    "configuration says if it is not given, which is bidirectional where it "
    "does not. The release keeps it, for all that is made of it.",
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
    "next_sentence",
    True,
    "Whether to train the next-sentence objective; without it records need not "
    "have its labels.",
)
flags.DEFINE_enum(
    "objective",
    "masked_lm",
    [*OBJECTIVES],
    "What is predicted of words: the masked ones; or, left to right, each from "
    "those before it, which takes the same records and undoes their masks.",
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
    pretraining_folder.require_writable(FLAGS.output_dir)
    encoding = _encoding(train_files) if FLAGS.do_export else None
    strategy = _connect(config, train_files, eval_files)
    task = PretrainingTask(
        config,
        FLAGS.max_seq_length,
        FLAGS.max_predictions_per_seq,
        FLAGS.next_sentence,
        FLAGS.objective,
    )
    data = _data(task, train_files, eval_files)
    with pipeline.input_errors([*train_files, *eval_files]):
        if FLAGS.do_eval or FLAGS.eval_steps > 0:
            # It reads them through: their faults show before training, too.
            data.evaluation(batch_size=FLAGS.eval_batch_size)
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
            hooks = _hooks(
                config,
                functools.partial(estimator.evaluate, data.evaluation),
                settings.last_step,
                data.examples_per_row(FLAGS.train_batch_size),
                writes=is_chief(strategy),
            )
            estimator.train(data.training, hooks)
        metrics = estimator.evaluate(data.evaluation) if FLAGS.do_eval else None
    if FLAGS.do_train and is_chief(strategy):
        _release(estimator, config, train_files)
    if metrics is not None and is_chief(strategy):
        path = os.path.join(FLAGS.output_dir, "eval_results.txt")
        write_results(path, {**metrics, **data.salvaged.results})
    if encoding is not None:
        export_kept(
            estimator,
            functools.partial(ServedMaskedLM, encoding=encoding),
            bert_flags.export_dir(),
            name="bert",
            metrics=metrics,
            source=FLAGS.init_checkpoint,
        )


def _connect(
    config: BertConfig, train_files: list[str], eval_files: list[str]
) -> Any:
    """Returns the devices, whose workers agree; locks --output_dir to train."""
    strategy = bert_flags.connect()
    require_same_settings(
        strategy,
        {"config": config.to_dict()},
        {
            "--input_file": train_files,
            "--eval_input_file": eval_files if FLAGS.eval_input_file else [],
        },
    )
    if FLAGS.do_train:
        by_chief(strategy, _lock_output_dir, "lock --output_dir")
    return strategy


def _lock_output_dir() -> None:
    bert_flags.hold(output_folder.locked(FLAGS.output_dir))


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


def _data(
    task: PretrainingTask, train_files: list[str], eval_files: list[str]
) -> PretrainingData:
    """The records, looked through for what is damaged.

    Raises:
      InputError: They do not suit the task.
    """
    if task.next_sentence:
        creation.require_next_sentence({*train_files, *eval_files})
    return PretrainingData(
        train_files,
        eval_files,
        task.schema,
        task.config.vocab_size,
        FLAGS.random_seed,
        FLAGS.max_eval_steps * FLAGS.eval_batch_size or None,
        is_packed=FLAGS.pack_sequences,
        is_causal=task.objective == "causal_lm",
        salvaged=look_through(
            train_files, eval_files, FLAGS.skip_corrupt_records
        ),
    )


def _read_config() -> BertConfig:
    """That of the flags, or of the checkpoint to start from."""
    config = find_config(
        FLAGS.bert_config_file,
        FLAGS.model_size,
        FLAGS.init_checkpoint,
        FLAGS.vocab_file,
    )
    direction = FLAGS.attention_direction or config.attention_direction
    return dataclasses.replace(config, attention_direction=direction)


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
    if FLAGS.do_export and FLAGS.objective != "masked_lm":
        raise InputError(
            "expected --objective=masked_lm with --do_export, whose model "
            f"fills in masked words. Received: {FLAGS.objective}"
        )
    require_length(FLAGS.max_seq_length, config)
    pretraining_folder.verify(
        FLAGS.output_dir,
        os.path.join(FLAGS.output_dir, RELEASE),
        _kind(config),
        FLAGS.random_seed if FLAGS.do_train else None,
    )
    if FLAGS.vocab_file:
        vocab = load_vocab(FLAGS.vocab_file)
        require_fit(vocab, config.vocab_size, FLAGS.vocab_file)


def _kind(config: BertConfig) -> dict[str, Any]:
    """What no shape tells of the model, as far as it matters to this run."""
    kind: dict[str, Any] = {
        **pretraining_folder.of_config(config),
        "objective": FLAGS.objective,
    }
    if FLAGS.do_train or (FLAGS.do_eval and FLAGS.next_sentence):
        # A head that was trained need not be evaluated.
        kind["next_sentence"] = FLAGS.next_sentence
    return kind


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
    unused = estimator.task.unused_variables
    lacking = [n for n in estimator.random_variables if not re.match(unused, n)]
    if lacking:
        heads = "both pre-training heads"
        if not FLAGS.next_sentence:
            heads = "the masked-LM head"
        raise InputError(
            f"expected a checkpoint with {heads}, {purpose}. Received: "
            f"{estimator.weights_from}, which lacks {lacking[0]}"
        )


class _Claim(Hook):
    """Notes the kind of model, if nothing was wrong up to the first step."""

    def __init__(self, kind: Mapping[str, Any]):
        self._kind = kind

    def begin(self, step: int) -> None:
        pretraining_folder.claim(
            FLAGS.output_dir, self._kind, FLAGS.random_seed
        )


def _hooks(
    config: BertConfig,
    evaluate: Callable[[], dict],
    last_step: int,
    examples_per_row: float,
    writes: bool,
) -> list[Hook]:
    """What watches the run.

    Args:
      config: The model's.
      evaluate: Gives the metrics; all processes have to call it.
      last_step: Where training ends.
      examples_per_row: How many examples one of the batch's rows has.
      writes: Whether this process is the one that tells what happens.
    """
    hooks: list[Hook] = []
    if writes:
        hooks.append(_Claim(_kind(config)))
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
    facts |= pretraining_folder.released(_kind(config))
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
