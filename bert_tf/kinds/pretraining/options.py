"""Pre-trains BERT on masked words and next sentences.

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

The records come from create_pretraining_data.py, of this project or of
google-research/bert. The job writes to --output_dir:

- `model.ckpt-STEP`, the training checkpoints; rerun the command to resume.
- `pretraining.json`, the kind of model; runs of another kind fail.
- TensorBoard's event files, and `evaluations.jsonl` with --eval_steps.
- `eval_results.txt`, with --do_eval.
- `release/`, to fine-tune from: `bert_model.ckpt`, `bert_config.json` and
  `vocab.txt`.
- `export/`, with --do_export: a SavedModel for TensorFlow Serving that fills in
  masked words.
"""

import dataclasses

from bert_tf.base import files
from bert_tf.base.options import local_option, option
from bert_tf.checkpoints.checkpoint import OBJECTIVES
from bert_tf.config import ATTENTION_DIRECTIONS
from bert_tf.errors import InputError, wrong_value
from bert_tf.jobs import settings
from bert_tf.jobs.settings import (
    DeviceOptions,
    ExportOptions,
    ModelOptions,
    TrainingOptions,
)
from bert_tf.training.settings import OPTIMIZERS, TrainingConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingConfig(
    ModelOptions, ExportOptions, TrainingOptions, DeviceOptions
):
    """Options of `run_pretraining.py`."""

    model_size: str | None = option(
        "Instead of --bert_config_file: a published size, such as base or "
        "L-4_H-256 or L-3_H-768_A-12, with the vocabulary of --vocab_file.",
        default=None,
    )
    attention_direction: str | None = option(
        "Which tokens a token attends to: all, or itself and those before it. "
        "The release records it. Default: as the configuration says, else "
        "bidirectional.",
        default=None,
        choices=ATTENTION_DIRECTIONS,
    )
    input_file: str = option(
        "TFRecord files to train on: globs, separated by commas.",
        per_worker=True,
    )
    eval_input_file: str | None = local_option(
        "TFRecord files to evaluate on. Default: --input_file, as in the "
        "original."
    )
    output_dir: str = option(
        "Directory of checkpoints and results.", per_worker=True
    )
    vocab_file: str | None = local_option(
        "Vocabulary file, to copy beside the released weights."
    )
    max_seq_length: int = option(
        "Sequence length of the records.",
        fallback=128,
        at_least=1,
        at_most=settings.MOST_TOKENS,
        recorded=True,
    )
    max_predictions_per_seq: int = option(
        "Number of masked positions in each record.",
        default=20,
        at_least=1,
        at_most=settings.MOST_TOKENS,
    )
    optimizer: str = option(
        "AdamW as in BERT, or LAMB.",
        default="adamw",
        choices=OPTIMIZERS,
        decides="model",
    )
    keep_checkpoint_max: int = option(
        "Number of most recent checkpoints to keep; 0 keeps all.", default=5
    )
    log_steps: int = option(
        "Number of steps between log lines and summaries.",
        default=100,
        per_worker=True,
    )
    do_train: bool = option("Whether to train.", default=False)
    do_eval: bool = option("Whether to evaluate.", default=False)
    num_train_steps: int = option("Number of steps.", default=100_000)
    num_warmup_steps: int = option(
        "Number of steps in which the learning rate rises to its peak.",
        default=10_000,
    )
    stop_at_step: int = option(
        "Step at which the first phase of a run stops, while the learning rate "
        "still decays towards --num_train_steps. A second command continues "
        "from there. 0: no phases.",
        default=0,
    )
    pack_sequences: bool = option(
        "Whether short examples share a row of --max_seq_length: the same "
        "losses with less padding. --train_batch_size and --eval_batch_size "
        "then count rows; the log reports the number of examples.",
        default=False,
    )
    max_eval_steps: int = option(
        "Largest number of evaluation batches; 0 for all.",
        default=100,
        at_least=0,
        at_most=2**31 - 1,
    )
    eval_steps: int = option(
        "Number of steps between evaluations during training; 0 for none.",
        default=0,
        at_least=0,
    )
    skip_corrupt_records: bool = option(
        "Whether to skip what follows a damaged record in its file; all files "
        "are read completely first. The results count the damaged files.",
        default=False,
    )
    next_sentence: bool = option(
        "Whether to train next-sentence prediction. Without it, records need "
        "no next-sentence labels.",
        default=True,
    )
    objective: str = option(
        "masked_lm: predict masked words. causal_lm: predict each word from "
        "the words before it, from the same records with their masks undone.",
        default="masked_lm",
        choices=OBJECTIVES,
    )

    def check(self) -> None:
        self._require_consistent()
        self.require_devices()
        self.training()
        checkpoint = self.init_checkpoint
        is_new = not files.is_remote(self.output_dir) and not files.exists(
            self.output_dir
        )
        if self.bert_config_file and not is_new:
            checkpoint = None  # The run may resume, without reading it.
        if not self.model_size:
            self.require_model(checkpoint)
        settings.require_files(self.vocab_file)
        for flag in ("input_file", "eval_input_file"):
            patterns = getattr(self, flag)
            if patterns and not files.is_remote(patterns):
                files.expand(patterns, flag)

    def training(self) -> TrainingConfig:
        """Returns the settings of the training."""
        return dataclasses.replace(
            settings.training_config(
                self, self.num_train_steps, self.num_warmup_steps
            ),
            stop_at_step=self.stop_at_step,
        )

    def _require_consistent(self) -> None:
        if not (self.do_train or self.do_eval or self.do_export):
            raise InputError(
                "Nothing to do: pass at least one of `do_train`, `do_eval`, "
                "`do_export`."
            )
        if self.do_export and self.objective != "masked_lm":
            raise wrong_value(
                "`objective`",
                "masked_lm with `do_export`, whose model fills in masked words",
                self.objective,
            )
        if self.model_size and self.bert_config_file:
            raise InputError(
                "`model_size` and `bert_config_file` exclude each other."
            )
        if self.model_size and not self.vocab_file:
            raise InputError(
                f"`model_size={self.model_size}` needs `vocab_file`, which "
                "gives the vocabulary size."
            )
