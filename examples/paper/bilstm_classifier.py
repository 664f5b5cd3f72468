"""run_classifier.py with a BiLSTM below the head: "+ BiLSTM" in table 5."""

from lstms import BilstmClassification

from bert_tf import cli
from bert_tf.kinds.classification import job as classifier


def run(config: classifier.ClassifierConfig) -> None:
    """Fine-tunes and evaluates."""
    classifier.run(config, BilstmClassification)


if __name__ == "__main__":
    cli.main(run)
