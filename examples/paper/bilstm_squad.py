"""run_squad.py with a BiLSTM below the head: "+ BiLSTM" in table 5."""

from lstms import BilstmSpans

from bert_tf import cli
from bert_tf.kinds.spans import job as squad


def run(config: squad.SquadConfig) -> None:
    """Fine-tunes and evaluates."""
    squad.run(config, BilstmSpans)


if __name__ == "__main__":
    cli.main(run)
