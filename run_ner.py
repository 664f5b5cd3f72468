"""Fine-tunes BERT to find named entities. See bert_tf/jobs/ner.py."""

from bert_tf import cli
from bert_tf.jobs import ner

if __name__ == "__main__":
    cli.main(ner.run)
