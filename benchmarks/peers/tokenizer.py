"""A tokenizer, for benchmarks/tokenization.py: strings in, ids out.

A request names a file, for how long it is tokenized repeatedly, and whether the
ids are returned. Reading the file is not timed, unless the request has "once":
then each pass makes a new tokenizer and reads the file. With
"num_lines", this number of lines is passed as one list. `tokenizers` needs the
packages of huggingface.txt, the original's are in tf-models-official.txt.
"""

import array
import functools
import hashlib
import json
import os
import sys

import side


def bert_tf(vocab_file, do_lower_case, num_threads):
    """`bert_tf.BertTokenizer` in tf.data."""
    import tensorflow as tf

    from bert_tf import BertTokenizer

    tokenizer = BertTokenizer(vocab_file, do_lower_case)
    options = tf.data.Options()
    options.threading.private_threadpool_size = num_threads

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def tokenize(texts):
        return tokenizer.tokenize(texts)

    def prepare(lines):
        batches = tf.data.Dataset.from_tensor_slices(lines).batch(1000)
        count = len(batches)
        batches = batches.cache().repeat()
        batches = batches.map(tokenize, num_parallel_calls=num_threads)
        # One iterator for all passes, as in training: creating it takes 0.1 s.
        iterator = iter(batches.with_options(options))
        return lambda: [next(iterator) for _ in range(count)]

    return prepare, lambda batches: [
        ids for batch in batches for ids in batch.to_list()
    ]


def bert_tf_lists(vocab_file, do_lower_case, num_threads):
    """`bert_tf.BertTokenizer`, called with a list."""
    from bert_tf import BertTokenizer

    tokenizer = BertTokenizer(vocab_file, do_lower_case)
    return lambda lines: functools.partial(tokenizer.tokenize, lines), None


def official(vocab_file, do_lower_case, num_threads):
    """The original's tokenizer, which uses one thread."""
    from official.nlp.tools.tokenization import FullTokenizer

    tokenizer = FullTokenizer(vocab_file, do_lower_case)

    def tokenize(line):
        return tokenizer.convert_tokens_to_ids(tokenizer.tokenize(line))

    return lambda lines: lambda: list(map(tokenize, lines)), iter


def tokenizers(vocab_file, do_lower_case, num_threads):
    """Hugging Face's tokenizers."""
    # These are read when the first lines are tokenized.
    os.environ["TOKENIZERS_PARALLELISM"] = str(num_threads > 1).lower()
    os.environ["RAYON_NUM_THREADS"] = str(num_threads)
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    model = models.WordPiece.from_file(vocab_file, unk_token="[UNK]")
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=do_lower_case)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    def prepare(lines):
        return functools.partial(
            tokenizer.encode_batch_fast, lines, add_special_tokens=False
        )

    return prepare, lambda encodings: (encoding.ids for encoding in encodings)


# Library -> makes a tokenizer: a function that prepares lines for timing, and
# one from its result to the ids of each line. Then the packages.
LIBRARIES = {
    "bert_tf": (bert_tf, ("tensorflow", "tensorflow-text")),
    "tf-models-official": (official, ("tf-models-official",)),
    "tokenizers": (tokenizers, ("tokenizers",)),
}


def digest(ids):
    """Returns a few characters for the ids of a line."""
    content = array.array("i", ids).tobytes()
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def start(setup):
    make, _ = LIBRARIES[setup["library"]]

    @functools.cache
    def prepared(file, vocab_file, do_lower_case, num_lines=None):
        ours = num_lines and setup["library"] == "bert_tf"
        prepare, ids_of = (bert_tf_lists if ours else make)(
            vocab_file, do_lower_case, setup["num_threads"]
        )
        with open(file, encoding="utf-8") as lines:
            return prepare(lines.read().splitlines()[:num_lines]), ids_of

    def reply(request):
        text = *request["text"], request["num_lines"]
        tokenize, ids_of = prepared(*text)
        if request["once"]:
            tokenize = lambda: prepared.__wrapped__(*text)[0]()  # noqa: E731
        usage, tokens = side.repeat(tokenize, request["least_seconds"])
        if request["with_ids"]:
            usage["lines"] = [digest(ids) for ids in ids_of(tokens)]
        return usage

    return reply


if __name__ == "__main__":
    library = json.loads(sys.argv[1])["library"]
    side.serve(start, LIBRARIES[library][1])
