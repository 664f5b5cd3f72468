"""Adds embeddings to a table with columns `id`, `text`, on Apache Spark.

    spark-submit examples/spark_embeddings.py MODEL texts.parquet out.parquet

Each Python worker loads the model once, for one core, and `predict` batches
texts by length. A task that runs twice writes its files once.
"""

from bert_tf import start_tensorflow

start_tensorflow.quietly()

import functools
import sys

import tensorflow as tf
from pyspark.sql import SparkSession

import bert_tf


@functools.cache
def load(model):
    tf.config.threading.set_intra_op_parallelism_threads(1)
    return bert_tf.TextEmbedder.from_pretrained(model)


def embed(model, frames):  # Of up to 10,000 rows each.
    for frame in frames:
        vectors = load(model).predict(frame["text"].tolist(), verbose=0)
        yield frame.assign(vector=list(vectors))


if __name__ == "__main__":
    session = SparkSession.builder.getOrCreate()
    session.sparkContext.addPyFile(__file__)
    from spark_embeddings import embed  # Workers import it, and keep `load`.

    texts = session.read.parquet(sys.argv[2]).select("id", "text")
    columns = "id long, text string, vector array<float>"
    table = texts.mapInPandas(functools.partial(embed, sys.argv[1]), columns)
    table.write.parquet(sys.argv[3], "overwrite")
