"""Asks a pre-trained model for missing words. See bert_tf/jobs/fill_mask.py."""

from bert_tf import cli
from bert_tf.jobs import fill_mask

if __name__ == "__main__":
    cli.main(fill_mask.run)
