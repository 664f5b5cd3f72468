"""Draws the attention of a model. See bert_tf/jobs/attention.py."""

from bert_tf import command

if __name__ == "__main__":
    command.run_job("attention")
