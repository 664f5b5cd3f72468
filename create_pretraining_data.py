"""Writes masked-LM and next-sentence examples.

See bert_tf/jobs/pretraining_data.py.
"""

from bert_tf import command

if __name__ == "__main__":
    command.run_job("pretraining_data")
