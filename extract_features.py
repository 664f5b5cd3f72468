"""Writes BERT's vectors of texts into a file. See bert_tf/jobs/features.py."""

from bert_tf import cli
from bert_tf.jobs import features

if __name__ == "__main__":
    cli.main(features.run)
