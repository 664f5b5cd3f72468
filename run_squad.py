"""Fine-tunes BERT to answer questions. See bert_tf/jobs/squad.py."""

from bert_tf import cli
from bert_tf.jobs import squad

if __name__ == "__main__":
    cli.main(squad.run)
