"""Fine-tunes BERT for vectors of texts. See bert_tf/jobs/embeddings.py."""

from bert_tf import cli
from bert_tf.jobs import embeddings

if __name__ == "__main__":
    cli.main(embeddings.run)
