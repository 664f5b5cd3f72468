"""Pre-trains BERT. See bert_tf/jobs/pretraining.py."""

from bert_tf import cli
from bert_tf.jobs import pretraining

if __name__ == "__main__":
    cli.main(pretraining.run)
