"""Writes masked-LM and next-sentence examples for run_pretraining.py.

For example:

    python create_pretraining_data.py \\
        --input_file=sample_text.txt \\
        --output_file=/tmp/tf_examples.tfrecord \\
        --vocab_file=uncased_L-12_H-768_A-12/vocab.txt \\
        --dupe_factor=5

With sample_text.txt of google-research/bert this takes half a second, prints
five examples and ends with "Wrote 54 total instances".
/tmp/manifest.tf_examples.tfrecord.json describes the file.
Larger texts use all CPUs; a core makes about 50,000 examples per second.

The text has one sentence per line and blank lines between documents. With
--input_format=jsonl, each line is a JSON object with one document.

These flags run the job on a cluster, with Apache Spark or a runner of Apache
Beam. The files are the same, byte for byte:

    --runner=spark --spark_master=spark://HOST:7077
    --runner=beam --beam_options='--runner=DataflowRunner --project=...'
"""

import dataclasses

from bert_tf.base import processes, signals
from bert_tf.base.options import option
from bert_tf.corpus.settings import CreationConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingDataConfig(CreationConfig):
    """Options of `create_pretraining_data.py`: the records and the runner."""

    num_workers: int | None = option(
        "Number of processes on this machine. Default: one per CPU. The files "
        "do not depend on it.",
        default=None,
        at_least=1,
        at_most=1024,
        needs="runner=local",
    )
    runner: str = option(
        "What runs the job: this machine, Apache Spark, or a runner of Apache "
        "Beam. The files do not depend on it.",
        default="local",
        choices=("local", "spark", "beam"),
    )
    beam_options: str = option(
        "Apache Beam's options for --runner=beam, as on a command line: "
        "'--runner=FlinkRunner --flink_master=...'. Default: Beam runs in this "
        "process, for a first try.",
        fallback="",
        needs="runner=beam",
    )
    spark_master: str | None = option(
        "URL of the Spark cluster: spark://HOST:PORT, yarn, k8s://..., or "
        "local[CORES]. Default: what spark-submit sets, or else local[*].",
        default=None,
        needs="runner=spark",
    )

    def check(self) -> None:
        self.require_effect("runner")


def run(config: PretrainingDataConfig) -> list[str]:
    """Writes the records.

    Returns:
      The paths of the record files.
    """
    from bert_tf.corpus import creation
    from bert_tf.corpus.engines import beam, spark

    config.check()
    job = CreationConfig(
        **{
            field.name: getattr(config, field.name)
            for field in dataclasses.fields(CreationConfig)
        }
    )
    with signals.stopping():
        if config.runner == "beam":
            beam.create(job, config.beam_options or "")
        elif config.runner == "spark":
            spark.create(job, config.spark_master)
        else:
            num_workers = config.num_workers or processes.available_cpus()
            creation.create(job, num_workers)
    return job.named_outputs
