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

    python run_ner.py --mode=feature_based --feature_layers=concat_last_four \\
        --learning_rate=1e-3 ...

freezes BERT and trains two bidirectional LSTMs on its vectors, as in table 7
of the paper, with a higher learning rate. To use such a model later, pass
--mode, --feature_layers and --lstm_size again.
`examples/paper/feature_based.py` runs the whole table.
"""

import dataclasses

from bert_tf.base.options import option
from bert_tf.jobs import settings
from bert_tf.jobs.options import checks
from bert_tf.jobs.settings import DataOptions, DistillationOptions
from bert_tf.kinds.tags.conll_files import find_file
from bert_tf.kinds.vectors.hidden_states import CHOICES


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
    mode: str = option(
        "fine_tuning trains all of BERT; feature_based trains two "
        "bidirectional LSTMs on BERT's vectors and leaves BERT unchanged.",
        default="fine_tuning",
        choices=("fine_tuning", "feature_based"),
    )
    feature_layers: str = option(
        "Layers whose vectors feature_based uses. sum_ adds them with learned "
        "weights; sum_all uses all layers but the embeddings.",
        default="concat_last_four",
        choices=tuple(CHOICES),
        needs="mode=feature_based",
    )
    lstm_size: int = option(
        "Size of the LSTMs of feature_based, in each direction.",
        default=768,
        at_least=1,
        at_most=10**6,
        needs="mode=feature_based",
    )

    def check(self) -> None:
        splits = settings.splits(self)
        self.require_effect("mode")
        checks.require_teacher(self)
        checks.require_fine_tuning(self)
        for split in splits:
            if checks.are_local([self.data_dir, self.file_name(split)]):
                checks.require_files(self.find_file(split))

    def file_name(self, split: str) -> str | None:
        """Returns the file that an option names for a split, if any."""
        name: str | None = getattr(self, f"{split}_file")
        return name

    def find_file(self, split: str) -> str:
        """Returns the path of the file of a split."""
        return find_file(split, self.data_dir, self.file_name(split))
