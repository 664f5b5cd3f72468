"""Converts a checkpoint to another format.

See bert_tf/jobs/convert_checkpoint.py.
"""

from bert_tf import cli
from bert_tf.jobs import convert_checkpoint

if __name__ == "__main__":
    cli.main(convert_checkpoint.run)
