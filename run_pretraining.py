"""Pre-trains BERT. See bert_tf/kinds/pretraining/job.py."""

from bert_tf import command

if __name__ == "__main__":
    command.run_job("pretraining")
