"""Learns a WordPiece vocabulary from text. See bert_tf/jobs/vocabulary.py."""

from bert_tf import command

if __name__ == "__main__":
    command.run_job("vocabulary")
