"""Fine-tunes BERT to answer questions. See bert_tf/kinds/spans/job.py."""

from bert_tf import command

if __name__ == "__main__":
    command.run_job("squad")
