"""run_ner.py with a BiLSTM below the head: "+ BiLSTM" in table 5."""

from lstms import BilstmTagging

from bert_tf import cli
from bert_tf.kinds.tags import job as ner


def run(config: ner.NerConfig) -> None:
    """Fine-tunes and evaluates."""
    ner.run(config, BilstmTagging)


if __name__ == "__main__":
    cli.main(run)
