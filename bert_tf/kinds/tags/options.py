"""Fine-tunes BERT to find named entities: CoNLL-2003 or a custom CoNLL file.

    python run_ner.py \\
        --data_dir=conll2003 \\
        --init_checkpoint=cased_L-12_H-768_A-12/bert_model.ckpt \\
        --output_dir=/tmp/ner_output \\
        --do_train --do_eval --do_predict \\
        --max_seq_length=128 --train_batch_size=32 \\
        --learning_rate=5e-5 --num_train_epochs=3

The configuration, vocabulary and casing are read from the checkpoint; use
--bert_config_file, --vocab_file and --do_lower_case if it does not contain
them. The files in --data_dir are train.txt, dev.txt and test.txt, or eng.train,
eng.testa and eng.testb; --train_file, --dev_file and --test_file name other
files. Each line has a word and its columns, and a blank line ends a sentence.
Tags may be in IOB1 (as the official files are), IOB2, IOBES or BILOU.

The job writes to --output_dir:

- `eval_results.txt` and `.json`, with --do_eval: precision, recall and F1 of
  the entities, from 0 to 1, as conlleval computes them.
- `dev_predictions.txt` and `test_predictions.txt`, which conlleval reads: the
  columns of the file, its tags and the predicted tags, both in IOB2. A test
  file needs no tags; to score it, pass it as --dev_file.
- `release/`, the fine-tuned model with its vocabulary and labels, which
  --init_checkpoint accepts.
- `export/`, with --do_export: a SavedModel for TensorFlow Serving.

Rerun the command to resume. Source: section 5.3 of the paper.
"""

import dataclasses

from bert_tf.base import files
from bert_tf.base.options import option
from bert_tf.jobs import settings
from bert_tf.jobs.settings import DataOptions, DistillationOptions
from bert_tf.kinds.tags.conll_files import find_file


@dataclasses.dataclass(frozen=True, kw_only=True)
class NerConfig(DataOptions, DistillationOptions):
    """Options of `run_ner.py`."""

    word_column: int = option(
        "Number of the column with the words, from 0; -1 is the last.",
        default=0,
    )
    tag_column: int = option(
        "Number of the column with the tags, from 0; -1 is the last.",
        default=-1,
    )
    labels: tuple[str, ...] | None = option(
        "The tags, in IOB2. Default: the tags of the training file, or of the "
        "model.",
        default=None,
    )

    def check(self) -> None:
        super().check()
        for split in settings.splits(self):
            paths = self.data_dir, getattr(self, f"{split}_file")
            if not any(map(files.is_remote, filter(None, paths))):
                settings.require_files(self.find_file(split))

    def find_file(self, split: str) -> str:
        """Returns the path of the file of a split."""
        return find_file(split, self.data_dir, getattr(self, f"{split}_file"))
