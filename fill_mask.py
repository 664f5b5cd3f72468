"""Asks a pre-trained model for missing words. See bert_tf/jobs/fill_mask.py."""

from bert_tf import command

if __name__ == "__main__":
    command.run_job("fill_mask")
