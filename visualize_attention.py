"""Draws the attention of a model. See bert_tf/jobs/attention.py."""

from bert_tf import cli
from bert_tf.jobs import attention

if __name__ == "__main__":
    cli.main(attention.run)
