"""Writes masked-LM and next-sentence examples.

See bert_tf/jobs/pretraining_data.py.
"""

from bert_tf import cli
from bert_tf.jobs import pretraining_data

if __name__ == "__main__":
    cli.main(pretraining_data.run)
