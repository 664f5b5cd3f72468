"""Pre-trains BERT. See bert_tf/jobs/pretraining.py."""

from bert_tf import command

if __name__ == "__main__":
    command.run_job("pretraining")
