"""Writes BERT's vectors of texts into a file. See bert_tf/jobs/features.py."""

from bert_tf import command

if __name__ == "__main__":
    command.run_job("features")
