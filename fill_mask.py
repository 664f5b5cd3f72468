"""Asks a pre-trained model for missing words.

See bert_tf/kinds/masked_words/job.py.
"""

from bert_tf import command

if __name__ == "__main__":
    command.run_job("fill_mask")
