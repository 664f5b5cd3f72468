"""Fine-tunes BERT to find named entities. See bert_tf/kinds/tags/job.py."""

from bert_tf import command

if __name__ == "__main__":
    command.run_job("ner")
