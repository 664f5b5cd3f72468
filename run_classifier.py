"""Fine-tunes BERT on a sentence-level task.

See bert_tf/kinds/classification/job.py.
"""

from bert_tf import command

if __name__ == "__main__":
    command.run_job("classifier")
