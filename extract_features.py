"""Writes BERT's vectors of texts into a file.

See bert_tf/kinds/vectors/features_job.py.
"""

from bert_tf import command

if __name__ == "__main__":
    command.run_job("features")
