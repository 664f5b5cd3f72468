"""Fine-tunes BERT on sentence-level tasks: GLUE, XNLI, SWAG or a custom file.

    python run_classifier.py \\
        --task_name=mrpc --data_dir=glue_data/MRPC \\
        --init_checkpoint=uncased_L-12_H-768_A-12/bert_model.ckpt \\
        --output_dir=/tmp/mrpc_output \\
        --do_train --do_eval --do_predict \\
        --max_seq_length=128 --train_batch_size=32 \\
        --learning_rate=2e-5 --num_train_epochs=3

The configuration, vocabulary and casing are read from the checkpoint; use
--bert_config_file, --vocab_file and --do_lower_case if it does not contain
them. For a custom TSV, CSV or JSON Lines file:

    python run_classifier.py --task_name=custom --data_dir=my_data \\
        --text_a_column=review --label_column=stars ...

The job writes to --output_dir:

- `eval_results.txt` and `.json`, with --do_eval.
- `test_results.tsv` with probabilities, as in the original, and
  `predictions.tsv` with texts and labels, with --do_predict.
- `release/`, the fine-tuned model with its vocabulary and labels. Pass this
  folder as --init_checkpoint to use the model.
- `export/`, with --do_export: a SavedModel for TensorFlow Serving.

Rerun the command to resume. Source: `run_classifier.py` of
google-research/bert; sections 4.1, 4.4 and appendix A.3 of the paper.
"""

import dataclasses

from bert_tf.base.options import option
from bert_tf.jobs import settings
from bert_tf.jobs.settings import DistillationOptions, TableOptions
from bert_tf.tasks import datasets
from bert_tf.tasks.datasets import DataSet
from bert_tf.tasks.encoding import WINDOW_POOLINGS


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifierConfig(TableOptions, DistillationOptions):
    """Options of `run_classifier.py`."""

    task_name: str = option(
        f"One of {', '.join((*datasets.NAMES, datasets.CUSTOM))}."
    )
    doc_stride: int | None = option(
        "Splits longer texts into windows of --max_seq_length tokens that "
        "start this many tokens apart. Of a pair, the longer text is split. "
        "Default: texts are truncated.",
        default=None,
        at_least=1,
        at_most=settings.MOST_TOKENS,
        recorded=True,
        decides="model",
    )
    window_pooling: str | None = option(
        "How the logits of the windows of a text become one answer. Default, "
        "with --doc_stride: mean.",
        default=None,
        choices=WINDOW_POOLINGS,
        recorded=True,
        decides="score",
        needs="doc_stride",
    )
    # The language of XNLI's development and test sets, as in the original; and
    # of its training set, by default the same.
    xnli_language: str = "zh"
    xnli_train_language: str | None = None
    text_a_column: str = option(
        "custom: column of the text, by name or by number from 0.",
        default="text",
        needs="task_name=custom",
    )
    text_b_column: str | None = option(
        "custom: column of the second text of a pair.",
        default=None,
        needs="task_name=custom",
    )
    label_column: str = option(
        "custom: column of the label. For multi_label problems, names "
        "separated by commas, or several columns of 0 and 1.",
        default="label",
        needs="task_name=custom",
    )
    labels: tuple[str, ...] | None = option(
        "custom: the labels. Default: the labels of the training file.",
        default=None,
        needs="task_name=custom",
    )
    problem: str = option(
        "custom: what the labels are. single_label: one of several; "
        "multi_label: any number of them; regression: a number.",
        default="single_label",
        choices=datasets.CUSTOM_PROBLEMS,
        needs="task_name=custom",
    )
    unlabeled_file: str | None = option(
        "TSV, CSV or JSON Lines file with more texts, trained on the "
        "--teacher's outputs only. Its columns are --text_a_column and, for "
        "pairs, --text_b_column; see --header.",
        default=None,
        per_worker=True,
        needs="teacher",
    )
    class_weights: tuple[str, ...] | None = option(
        "Weight of each class in training: 'balanced', or one number per "
        "label, in their order.",
        default=None,
        decides="model",
    )
    # The fraction of an example's weight that training spreads over all labels.
    label_smoothing: float = 0.0
    head_dropout: float = option(
        "Dropout rate before the head in training. Default: the checkpoint's "
        "classifier_dropout.",
        fallback=0.1,
        at_least=0.0,
        below=1.0,
        decides="model",
    )

    def check(self) -> None:
        if self.do_train:
            self.require_effect("doc_stride")
        is_custom = self.task_name.lower() == datasets.CUSTOM
        find = self.custom_data_set if is_custom else self.official_data_set
        super().check()
        self.require_splits(find, settings.splits(self))
        settings.require_files(self.unlabeled_file)

    def official_data_set(self) -> DataSet:
        """Returns the data set of a --task_name other than "custom"."""
        return datasets.find(
            self.task_name,
            language=self.xnli_language,
            train_language=self.xnli_train_language,
        )
