"""bert_tf.BertTokenizer in tf.data, for benchmarks/tokenization.py."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf
import tokenizing

from bert_tf.tokenization.graph import BertTokenizer

# Lines that are tokenized at once.
BATCH_SIZE = 1000


def make(vocab_file: str, do_lower_case: bool, num_threads: int):
    tokenizer = BertTokenizer(vocab_file, do_lower_case)
    options = tf.data.Options()
    options.threading.private_threadpool_size = num_threads

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def tokenize(texts):
        return tokenizer.tokenize(texts)

    def prepare(lines: list[str]):
        batches = tf.data.Dataset.from_tensor_slices(lines).batch(BATCH_SIZE)
        count = len(batches)
        batches = batches.cache().repeat()
        batches = batches.map(tokenize, num_parallel_calls=num_threads)
        # One pass after another by the same iterator, as in training: to make
        # one takes a tenth of a second.
        iterator = iter(batches.with_options(options))
        return lambda: [next(iterator) for _ in range(count)]

    return prepare


def ids(batches: list[tf.RaggedTensor]):
    for batch in batches:
        yield from batch.to_list()


if __name__ == "__main__":
    tokenizing.main(make, ids, ("tensorflow", "tensorflow-text"))
