"""Fine-tunes BERT on a sentence-level task. See bert_tf/jobs/classifier.py."""

from bert_tf import cli
from bert_tf.jobs import classifier

if __name__ == "__main__":
    cli.main(classifier.run)
