"""Fine-tunes BERT to answer questions. See bert_tf/jobs/squad.py."""

from bert_tf import command

if __name__ == "__main__":
    command.run_job("squad")
