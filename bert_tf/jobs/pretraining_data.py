"""Writes examples for pre-training: the job of create_pretraining_data.py.

Its options and files are explained in options/pretraining_data.py.
"""

import dataclasses

from bert_tf.base import processes, signals
from bert_tf.corpus import creation
from bert_tf.corpus.engines import beam, spark
from bert_tf.corpus.settings import CreationConfig
from bert_tf.jobs.options.pretraining_data import PretrainingDataConfig


def run(config: PretrainingDataConfig) -> list[str]:
    """Writes the records.

    Returns:
      The paths of the record files.
    """
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
