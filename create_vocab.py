"""Learns a WordPiece vocabulary from text. See bert_tf/jobs/vocabulary.py."""

from bert_tf import cli
from bert_tf.jobs import vocabulary

if __name__ == "__main__":
    cli.main(vocabulary.run)
