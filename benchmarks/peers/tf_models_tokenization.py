"""The original's FullTokenizer, for benchmarks/tokenization.py.

It needs what tf-models-official.txt lists, and nothing of bert_tf. Python runs
one thread of it at a time, however many there are.
"""

import tokenizing
from official.nlp.tools.tokenization import FullTokenizer


def make(vocab_file: str, do_lower_case: bool, num_threads: int):
    tokenizer = FullTokenizer(vocab_file, do_lower_case)

    def tokenize(line: str) -> list[int]:
        return tokenizer.convert_tokens_to_ids(tokenizer.tokenize(line))

    return lambda lines: lambda: list(map(tokenize, lines))


if __name__ == "__main__":
    tokenizing.main(make, iter, ("tf-models-official",))
