"""What every side of benchmarks/tokenization.py does: strings in, ids out.

A request names a file, for how long it is to be tokenized, again and again, and
whether the ids are asked for. What reads the file is not timed. Nothing but the
standard library: it runs in every environment.
"""

import argparse
import array
import functools
import hashlib
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import request_lines

# A vocabulary, whether it is an uncased one, and threads -> lines of text, to
# be brought into the form that users have them in -> what is timed: it
# tokenizes them.
Make = Callable[[str, bool, int], Callable[[list[str]], Callable[[], Any]]]


def main(
    make: Make,
    ids: Callable[[Any], Iterable[list[int]]],
    packages: Iterable[str],
) -> None:
    """Tokenizes the files that are asked for, and says how long it took.

    Args:
      make: Makes a tokenizer, which is then timed.
      ids: From what it gives to the pieces' ids, without special tokens, of
        each line; not timed.
      packages: Those whose versions matter.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_threads", type=int, required=True)
    num_threads = parser.parse_args().num_threads
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:num_threads])
    tokenizers = functools.cache(
        lambda vocab_file, lower: make(vocab_file, lower, num_threads)
    )

    @functools.cache
    def prepared(file: str, vocab_file: str, lower: bool) -> Callable[[], Any]:
        return tokenizers(vocab_file, lower)(read_lines(file))

    def reply(request: dict[str, Any]) -> dict[str, Any]:
        tokenize = prepared(
            request["file"], request["vocab_file"], request["do_lower_case"]
        )
        start, cpu_start = time.perf_counter(), time.process_time()
        seconds, times = 0.0, 0
        while times == 0 or seconds < request["least_seconds"]:
            tokens = tokenize()
            seconds, times = time.perf_counter() - start, times + 1
        answer = {
            "times": times,
            "seconds": seconds,
            "cpu_seconds": time.process_time() - cpu_start,
        }
        if request["with_ids"]:
            answer["lines"] = [digest(line) for line in ids(tokens)]
        return answer

    request_lines.serve(reply, packages)


def read_lines(path: str) -> list[str]:
    with open(path, encoding="utf-8") as file:
        return file.read().splitlines()


def digest(ids: list[int]) -> str:
    """A few characters that stand for the ids of a line."""
    content = array.array("i", ids).tobytes()
    return hashlib.blake2b(content, digest_size=8).hexdigest()
