"""Fine-tunes BERT to answer questions: SQuAD 1.1, SQuAD 2.0, KorQuAD.

    python run_squad.py \\
        --train_file=squad/train-v1.1.json \\
        --predict_file=squad/dev-v1.1.json \\
        --init_checkpoint=uncased_L-12_H-768_A-12/bert_model.ckpt \\
        --output_dir=/tmp/squad_output \\
        --do_train --do_predict --do_eval \\
        --train_batch_size=12 --learning_rate=3e-5 --num_train_epochs=2 \\
        --max_seq_length=384 --doc_stride=128

The configuration, vocabulary and casing are read from the checkpoint; use
--bert_config_file, --vocab_file and --do_lower_case if it does not contain
them. Add --version_2_with_negative for SQuAD 2.0, whose questions may have no
answer, and --scorer=korquad for KorQuAD.

The job writes to --output_dir:

- `predictions.json`, `nbest_predictions.json` and, for 2.0, `null_odds.json`,
  with --do_predict.
- `eval_results.txt` and `.json`, with --do_eval: the official scores of
  --predict_file.
- `release/`, the fine-tuned model, which --init_checkpoint accepts.
- `export/`, with --do_export: a SavedModel for TensorFlow Serving.

Rerun the command to resume. Source: `run_squad.py` of google-research/bert;
sections 4.2 and 4.3 of the paper.
"""

import dataclasses

from bert_tf.base.options import option
from bert_tf.errors import InputError
from bert_tf.jobs import settings
from bert_tf.jobs.settings import DistillationOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadConfig(DistillationOptions):
    """Options of `run_squad.py`."""

    train_file: str | None = option(
        "JSON file in SQuAD's format to train on.",
        default=None,
        per_worker=True,
    )
    predict_file: str | None = option(
        "JSON file in SQuAD's format with the questions to answer.",
        default=None,
        per_worker=True,
    )
    max_seq_length: int = option(
        "Largest number of tokens of a window, [CLS] and [SEP] included.",
        fallback=384,
        at_least=3,
        at_most=settings.MOST_TOKENS,
        recorded=True,
        decides="model",
    )
    doc_stride: int = option(
        "Number of tokens from the start of a window to the start of the next.",
        fallback=128,
        at_least=1,
        recorded=True,
        decides="model",
    )
    max_query_length: int = option(
        "Largest number of tokens of a question; longer ones are truncated.",
        fallback=64,
        at_least=1,
        recorded=True,
        decides="model",
    )
    n_best_size: int = option(
        "Number of start and end positions to consider in each window, and of "
        "answers in nbest_predictions.json.",
        default=20,
        at_least=1,
        at_most=10**4,
        decides="score",
    )
    max_answer_length: int = option(
        "Largest number of tokens of an answer.",
        default=30,
        at_least=1,
        decides="score",
    )
    version_2_with_negative: bool = option(
        "Whether questions may have no answer, as in SQuAD 2.0.",
        fallback=False,
        recorded=True,
    )
    null_score_diff_threshold: float = option(
        "2.0: a question has no answer if the score of no answer exceeds the "
        "score of the best span by more than this. Use eval_best_f1_thresh. If "
        "it is 0.0, use -1e6, with which no question is answered.",
        default=0.0,
        decides="score",
    )
    scorer: str = option(
        "Official scores that --do_eval computes: SQuAD's, on words, or "
        "KorQuAD's, on characters.",
        default="squad",
        choices=("squad", "korquad"),
        decides="score",
    )
    verbose_logging: bool = option(
        "Ignored, for old command lines: the original logged predictions that "
        "it did not find in their text; here they are slices of the text.",
        default=False,
    )

    def check(self) -> None:
        options = {"train": "train_file", "dev": "predict_file"}
        options["test"] = "predict_file"
        for split in settings.splits(self):
            if not getattr(self, options[split]):
                raise InputError(
                    f"`{options[split]}` is required: a JSON file of SQuAD."
                )
            settings.require_files(getattr(self, options[split]))
        self.require_scorer()
        super().check()

    def require_scorer(self) -> None:
        """Raises InputError for KorQuAD's scores of questions of SQuAD 2.0."""
        if self.scorer == "korquad" and self.version_2_with_negative:
            raise InputError(
                "`scorer=korquad` and `version_2_with_negative` exclude each "
                "other: all questions of KorQuAD 1.0 have an answer."
            )
