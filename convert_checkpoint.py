"""Converts a checkpoint to another format.

See bert_tf/jobs/convert_checkpoint.py.
"""

from bert_tf import command

if __name__ == "__main__":
    command.run_job("convert_checkpoint")
