"""Fine-tunes BERT for vectors of texts. See bert_tf/kinds/vectors/job.py."""

from bert_tf import command

if __name__ == "__main__":
    command.run_job("embeddings")
