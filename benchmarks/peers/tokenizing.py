"""What every side of benchmarks/tokenization.py does: strings in, ids out.

A request names a file, for how long it is to be tokenized, again and again, and
whether the ids are asked for. What reads the file is not timed. Nothing but the
standard library: it runs in every environment.
"""

import array
import functools
import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import request_lines
import timing

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
    num_threads = timing.threads()
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
        told, tokens = timing.repeat(tokenize, request["least_seconds"])
        if request["with_ids"]:
            return {**told, "lines": [digest(line) for line in ids(tokens)]}
        return told

    request_lines.serve(reply, packages)


def read_lines(path: str) -> list[str]:
    with open(path, encoding="utf-8") as file:
        return file.read().splitlines()


def digest(ids: list[int]) -> str:
    """A few characters that stand for the ids of a line."""
    content = array.array("i", ids).tobytes()
    return hashlib.blake2b(content, digest_size=8).hexdigest()
