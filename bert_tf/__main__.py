"""Runs the command `bert-tf` as `python -m bert_tf`."""

import sys

from bert_tf import command

if __name__ == "__main__":
    sys.argv[0] = "bert-tf"
    command.command()
