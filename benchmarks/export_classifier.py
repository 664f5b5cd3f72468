"""Exports a classifier that lies in a Hugging Face folder.

    python export_classifier.py --init_checkpoint=FOLDER --export_dir=exports \
        --max_seq_length=128 --mixed_precision=bfloat16

The new version's folder is the last line that it prints.
"""

from absl import app, flags

import bert_tf.quiet_tensorflow  # noqa: F401
from bert_tf.heads import BertClassifier
from bert_tf.pretrained import load_checkpoint, open_pretrained
from bert_tf.serving.classifiers import ServedClassifier
from bert_tf.serving.export import export
from bert_tf.tasks.encoding import TextEncoding

FLAGS = flags.FLAGS
POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}

flags.DEFINE_string("init_checkpoint", None, "The folder.", required=True)
flags.DEFINE_string("export_dir", None, "Where to.", required=True)
flags.DEFINE_integer("max_seq_length", 128, "Longest sequence, in pieces.")
flags.DEFINE_enum("mixed_precision", "float32", list(POLICIES), "As elsewhere.")


def main() -> None:
    pretrained = open_pretrained(FLAGS.init_checkpoint)
    model = BertClassifier(
        pretrained.config,
        len(pretrained.labels),
        dtype=POLICIES[FLAGS.mixed_precision],
    )
    load_checkpoint(model, FLAGS.init_checkpoint, may_lack="")
    encoding = TextEncoding(
        pretrained.vocab,
        pretrained.do_lower_case,
        pretrained.strip_accents,
        FLAGS.max_seq_length,
    )
    served = ServedClassifier(
        model, encoding, pretrained.labels, "single_label", is_pair=False
    )
    print(export(served, FLAGS.export_dir))


if __name__ == "__main__":
    app.run(lambda argv: main())
