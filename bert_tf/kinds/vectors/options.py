"""Fine-tunes BERT for sentence embeddings, on pairs of texts.

    python run_embeddings.py \\
        --task_name=sts-b --data_dir=glue_data/STS-B \\
        --init_checkpoint=uncased_L-12_H-768_A-12/bert_model.ckpt \\
        --output_dir=/tmp/sts_output \\
        --do_train --do_eval --do_predict --do_export \\
        --max_seq_length=128 --train_batch_size=16 \\
        --learning_rate=2e-5 --num_train_epochs=4

Training fits the cosine of a pair's embeddings to its similarity. With custom
TSV, CSV or JSON Lines files, --label_column names the similarities, from 0 to
--max_score. Without --label_column, the texts of a pair belong together, and
the other second texts of a batch are negatives:

    python run_embeddings.py --task_name=custom --data_dir=my_data \\
        --text_a_column=question --text_b_column=answer ...

Here, a batch is what one device computes at a time: --train_batch_size divided
by the number of devices and by --gradient_accumulation_steps.

The job writes to --output_dir:

- `eval_results.txt` and `.json`, with --do_eval: the correlations of cosines
  and similarities; or, without similarities, how often the matching second text
  is the nearest (`eval_accuracy`), and its mean reciprocal rank (`eval_mrr`).
- `test_results.tsv` with the cosine of each pair, and `predictions.tsv` with
  the texts too, with --do_predict.
- `release/`, the model with its vocabulary and pooling, which
  `TextEmbedder.from_pretrained` and --init_checkpoint accept.
- `export/`, with --do_export: a SavedModel from strings to vectors.

Rerun the command to resume. Source: Reimers and Gurevych 2019,
"Sentence-BERT"; Henderson et al. 2017, section 4.4, for in-batch negatives.
"""

import dataclasses

from bert_tf.base.options import option
from bert_tf.config import TOKEN_POOLINGS
from bert_tf.errors import InputError, wrong_value
from bert_tf.jobs import settings
from bert_tf.jobs.settings import FineTuningOptions, TableOptions
from bert_tf.tasks import datasets
from bert_tf.tasks.datasets import DataSet

# The largest similarity in each data set that has similarities.
LARGEST = {"sts-b": 5.0, "korsts": 5.0}


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingsConfig(TableOptions, FineTuningOptions):
    """Options of `run_embeddings.py`."""

    task_name: str = option(f"One of {', '.join((*LARGEST, datasets.CUSTOM))}.")
    text_a_column: str = option(
        "custom: column of the first text, by name or by number from 0.",
        default="text_a",
        needs="task_name=custom",
    )
    text_b_column: str = option(
        "custom: column of the second text.",
        default="text_b",
        needs="task_name=custom",
    )
    label_column: str | None = option(
        "custom: column of the similarity. Default: the texts of each pair "
        "belong together.",
        default=None,
        needs="task_name=custom",
    )
    max_score: float = option(
        "custom: the largest similarity, which means a cosine of 1; 0 means a "
        "cosine of 0.",
        default=1.0,
        needs="task_name=custom",
    )
    pooling: str | None = option(
        "How token vectors become an embedding: the mean or max of the last "
        "layer over all tokens, the last layer at [CLS], or the pooler's "
        "output. Default: as --init_checkpoint says, else mean.",
        default=None,
        choices=("pooled", *TOKEN_POOLINGS),
        recorded=True,
    )
    normalize: bool | None = option(
        "Whether exported and released models return embeddings of length 1. "
        "Default: as --init_checkpoint says, else true.",
        default=None,
        recorded=True,
    )

    def check(self) -> None:
        if self.max_score <= 0:
            raise wrong_value("`max_score`", "a number above 0", self.max_score)
        super().check()
        self.require_splits(self.data_set, settings.splits(self))

    def data_set(self) -> DataSet:
        """Returns the data set of --task_name, or of custom files."""
        name = self.task_name.lower()
        if name == datasets.CUSTOM:
            return self.custom_data_set()
        official = datasets.find(name)
        if official.name not in LARGEST:
            raise InputError(
                f"`task_name={name}` has no similarities. Pass one of "
                f"{', '.join(LARGEST)}, or {datasets.CUSTOM} with columns."
            )
        return official
