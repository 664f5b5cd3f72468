"""Hugging Face's tokenizers, for benchmarks/tokenization.py.

It needs what huggingface.txt lists, and nothing of bert_tf.
"""

import functools
import os

import tokenizing
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers


def make(vocab_file: str, do_lower_case: bool, num_threads: int):
    # Both are read when the first lines are tokenized.
    os.environ["TOKENIZERS_PARALLELISM"] = str(num_threads > 1).lower()
    os.environ["RAYON_NUM_THREADS"] = str(num_threads)
    tokenizer = Tokenizer(
        models.WordPiece.from_file(vocab_file, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=do_lower_case)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    return lambda lines: functools.partial(
        tokenizer.encode_batch_fast, lines, add_special_tokens=False
    )


def ids(encodings):
    return (encoding.ids for encoding in encodings)


if __name__ == "__main__":
    tokenizing.main(make, ids, ("tokenizers",))
