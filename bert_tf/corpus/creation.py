"""What data creation says of its work: complaints, samples, the manifest."""

import collections
import contextlib
import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import BufferedIOBase
from typing import Any

import numpy as np
import numpy.typing as npt
from absl import logging

from bert_tf import files
from bert_tf.corpus import instances, stages, text
from bert_tf.corpus.settings import (
    DEFAULT_SIZES,
    CreationConfig,
    PieceSizes,
)
from bert_tf.corpus.stages import Dealing
from bert_tf.data import processes
from bert_tf.errors import InputError
from bert_tf.version import __version__

# What data creation says of its work: complaints, samples, the manifest.


SUSPICIOUS_UNKNOWN_SHARE = 0.1
SUSPICIOUS_RANDOM_SHARE = 0.75
SUSPICIOUS_BEYOND_SHARE = 0.05


def vocabulary_entry(config: CreationConfig) -> dict[str, Any]:
    """What the manifest says of the vocabulary.

    Raises:
      InputError: It is unusable or lacks a special token.
    """
    size = len(stages.tools(config).tokenizer.vocab)
    with files.open_read(config.vocab_file) as file:
        checksum = hashlib.sha256(file.read()).hexdigest()
    return {"path": config.vocab_file, "size": size, "sha256": checksum}


def shard_entry(path: str, num_records: int, checksum: str) -> dict[str, Any]:
    """What the manifest says of an output file."""
    return {"path": path, "records": num_records, "sha256": checksum}


def manifest(
    config: CreationConfig,
    vocabulary: dict[str, Any],
    sizes: Mapping[str, int],
    shards: Sequence[dict[str, Any]],
    counts: Mapping[str, int],
) -> dict[str, Any]:
    """All that is to be known of the records.

    Args:
      config: The settings.
      vocabulary: A `vocabulary_entry`.
      sizes: The bytes of text of each input file.
      shards: A `shard_entry` for each output file.
      counts: What was counted, by name.
    """
    return {
        "version": __version__,
        "settings": config.settings(),
        "vocabulary": vocabulary,
        "inputs": [
            {"path": path, "bytes": size} for path, size in sizes.items()
        ],
        "outputs": list(shards),
        "counts": {name: counts[name] for name in sorted(counts)},
    }


def token_counts(
    config: CreationConfig, block: text.EncodedBlock
) -> collections.Counter[str]:
    """What is in a block's tokens, by the manifest's names."""
    unk_id = stages.tools(config).unk_id
    beyond = block.lengths - config.instance_rule.room
    return collections.Counter(
        tokens=len(block.tokens),
        sentences=len(block.lengths),
        unknown_tokens=int((block.tokens == unk_id).sum()),
        sentences_longer_than_an_instance=int((beyond > 0).sum()),
        tokens_beyond_an_instance=int(beyond[beyond > 0].sum()),
    )


def check_text(config: CreationConfig, counts: Mapping[str, int]) -> None:
    """Looks at a text before anything is cut from it.

    Raises:
      InputError: Nothing can be made of it.
    """
    if not counts["sentences"]:
        raise InputError(
            "Expected lines of text. Received: nothing but blank lines in "
            f"--input_file={config.input_file}"
        )
    if not config.next_sentence:
        return
    is_text = config.input_format == "text"
    if counts["documents"] == 1:
        advice = "put blank lines between documents, or " if is_text else ""
        raise InputError(
            "Expected two documents or more: next-sentence prediction takes "
            "random sentences from another one. Received: 1 document; "
            f"{advice}pass --nonext_sentence"
        )
    if counts["sentences"] == counts["documents"]:
        advice = (
            "leave blank lines between documents only"
            if is_text
            else f"end each sentence in {config.jsonl_field!r} with \\n"
        )
        raise InputError(
            "Expected documents of several sentences, one a line: a lone "
            f"sentence has no next one. Received: {counts['documents']:,} "
            f"documents of 1 sentence; {advice}, or pass --nonext_sentence"
        )


def check_instances(config: CreationConfig, counts: Mapping[str, int]) -> None:
    """Warns of what is possible, but seldom meant."""
    unknown = counts["unknown_tokens"] / counts["tokens"]
    if unknown > SUSPICIOUS_UNKNOWN_SHARE:
        logging.warning(
            "%.0f %% of the tokens are [UNK]: do --vocab_file, "
            "--do_lower_case and --strip_accents suit the text?",
            100 * unknown,
        )
    beyond = counts["tokens_beyond_an_instance"] / counts["tokens"]
    # A single segment goes on in the next instance and loses nothing.
    if config.next_sentence and beyond > SUSPICIOUS_BEYOND_SHARE:
        logging.warning(
            "%d of %d lines are longer than an instance; what does not fit "
            "is dropped, %.0f %% of all tokens: is there one sentence a "
            "line?",
            counts["sentences_longer_than_an_instance"],
            counts["sentences"],
            100 * beyond,
        )
    random_next = counts["random_next"] / counts["instances"]
    if random_next > SUSPICIOUS_RANDOM_SHARE:
        logging.warning(
            "%.0f %% of the instances have a random next sentence: there "
            "are many documents of one sentence, or sentences longer than "
            "--max_seq_length",
            100 * random_next,
        )


def log_samples(
    config: CreationConfig, samples: Mapping[str, npt.ArrayLike]
) -> None:
    """Shows instances in words.

    Args:
      config: The settings.
      samples: The features of some instances, each [n, ...].
    """
    to_words = stages.tools(config).tokenizer.convert_ids_to_tokens
    arrays = {name: np.asarray(values) for name, values in samples.items()}
    for row in range(len(arrays["input_ids"])):
        sample = {name: values[row] for name, values in arrays.items()}
        is_token = sample["input_mask"].astype(bool)
        is_masked = sample["masked_lm_weights"] > 0
        logging.info("*** Example ***")
        logging.info(
            "tokens: %s", " ".join(to_words(sample["input_ids"][is_token]))
        )
        logging.info(
            "masked_lm_labels: %s",
            " ".join(to_words(sample["masked_lm_ids"][is_masked])),
        )
        logging.info(
            "is_random_next: %s", bool(sample["next_sentence_labels"][0])
        )


# Text to pre-training records: the whole job of create_pretraining_data.py.


def create(
    config: CreationConfig,
    num_workers: int,
    sizes: PieceSizes = DEFAULT_SIZES,
) -> dict[str, Any]:
    """Writes the records and, beside the first output, a manifest.

    The outputs appear when all of them are complete; if anything fails before,
    files of these names that were there stay as they are. While at work, the
    folder of the first output holds scratch files of some 0.7 bytes for each
    byte of text and 25 for each instance.

    Args:
      config: What to do.
      num_workers: Processes to use. It does not show in the result.
      sizes: Of the pieces of work.

    Returns:
      The manifest: settings, counts, checksums.

    Raises:
      InputError: The settings, the vocabulary, the text or the places to write
        to cannot be used.
    """
    inputs = config.input_paths()
    outputs = config.output_paths(inputs)
    vocabulary = vocabulary_entry(config)  # A bad one shows at once.
    manifest_path = files.manifest_path(outputs[0])
    with (
        _scratch_folder(outputs[0]) as folder,
        # The manifest first, which makes it the last to be renamed.
        _writers([manifest_path, *outputs]) as (manifest_file, *shard_files),
        processes.Pool(num_workers) as pool,
    ):
        job = _Job(config, folder, pool, sizes)
        text_bytes = job.tokenize(inputs)
        check_text(config, job.counts)
        job.cut()
        shards = list(map(_Shard, outputs, shard_files))
        job.write(shards)
        check_instances(config, job.counts)
        entries = [shard.entry() for shard in shards]
        made = manifest(config, vocabulary, text_bytes, entries, job.counts)
        manifest_file.write(json.dumps(made, indent=2).encode() + b"\n")
    logging.info("Wrote %d total instances", job.counts["instances"])
    return made


def casing_of(outputs: Iterable[str]) -> dict[str, bool | None]:
    """Tells how the text in record files was normalized, by their manifests.

    Args:
      outputs: Record files; only the first of a job has a manifest beside it.

    Returns:
      `do_lower_case` and `strip_accents`, if there is a manifest and if all
      manifests say the same; else nothing.
    """
    found = list(_settings_of(outputs, "do_lower_case", "strip_accents"))
    agree = found and all(casing == found[0] for casing in found)
    return found[0] if agree else {}


def require_next_sentence(outputs: Iterable[str]) -> None:
    """Makes sure that records have next sentences, by their manifests.

    Without them every label is the same, which a model learns at once.

    Raises:
      InputError: A manifest says that they were made without.
    """
    for path in outputs:
        if {"next_sentence": False} in _settings_of([path], "next_sentence"):
            raise InputError(
                f"expected --nonext_sentence, as {path} was made. Received: "
                "--next_sentence"
            )


def _settings_of(outputs: Iterable[str], *names: str) -> Iterator[dict]:
    """Some of the settings of each manifest that is there."""
    for path in map(files.manifest_path, outputs):
        if files.exists(path):
            settings = files.read_json(path).get("settings", {})
            yield {name: settings.get(name) for name in names}


@contextlib.contextmanager
def _scratch_folder(output: str) -> Iterator[str]:
    """A folder for what is needed on the way, gone afterwards.

    It is beside the output, where there has to be room, unless that is remote.
    Those of earlier runs that were killed are removed.
    """
    beside = None if files.is_remote(output) else os.path.dirname(output) or "."
    prefix = files.temporary_prefix(os.path.basename(output))
    files.remove_leftovers(output)
    try:
        if beside:
            files.makedirs(beside)
        scratch = tempfile.TemporaryDirectory(prefix=prefix, dir=beside)
    except OSError as error:
        raise InputError(
            f"Cannot write to the folder of {output}: {error.strerror}."
        ) from error
    with scratch as folder:
        yield folder


@contextlib.contextmanager
def _writers(paths: Sequence[str]) -> Iterator[list[BufferedIOBase]]:
    """Files that replace those at `paths` if the block ends well."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(files.atomic_writer(path)) for path in paths]


class _Shard:
    """One output file: where it is, and what has been written to it."""

    def __init__(self, path: str, file: BufferedIOBase) -> None:
        self.path = path
        self._file = file
        self._checksum = hashlib.sha256()
        self._num_records = 0

    def append(self, part: stages.Part) -> None:
        self._file.write(part.data)
        self._checksum.update(part.data)
        self._num_records += part.num_instances

    def entry(self) -> dict[str, Any]:
        """What the manifest says of it."""
        return shard_entry(
            self.path, self._num_records, self._checksum.hexdigest()
        )


class _Job:
    """The stages, to be run one after the other.

    Attributes:
      counts: What has been counted so far, for the manifest.
    """

    def __init__(
        self,
        config: CreationConfig,
        folder: str,
        pool: processes.Pool,
        sizes: PieceSizes,
    ) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self._config = config
        self._folder = folder
        self._pool = pool
        self._sizes = sizes

    def _run(
        self, stage: Callable[..., Any], pieces: Iterable[Any]
    ) -> Iterator[Any]:
        function = functools.partial(stage, self._config, self._folder)
        return self._pool.run(pieces, function)

    def tokenize(self, paths: Sequence[str]) -> dict[str, int]:
        """Stage 1: text to a Corpus; returns the bytes of text of each file."""
        logging.info("*** Reading from input files ***")
        for path in paths:
            logging.info("  %s", path)
        sizes = dict.fromkeys(paths, 0)
        blocks = processes.track(
            self._run(stages.encode, text.blocks_of_files(paths)),
            lambda block: block.num_bytes,
            "Tokenizing",
            "bytes",
        )
        with text.CorpusWriter(self._folder) as writer:
            for block in blocks:
                writer.append(block)
                sizes[block.path] += block.num_bytes
                self.counts.update(token_counts(self._config, block))
        self.counts["documents"] = writer.num_documents
        return sizes

    def cut(self) -> None:
        """Stage 2: a Corpus to the spans of instances, not shuffled yet."""
        corpus = text.Corpus.open(self._folder)
        size = self._sizes.sentences
        plans = (
            stages.CutPlan(first, stop, size)
            for first, stop in instances.sections(corpus, size)
        )
        pieces = processes.track(
            self._run(stages.cut, plans),
            len,
            "Cutting",
            "instances",
        )
        with open(os.path.join(self._folder, stages.SPANS), "wb") as file:
            for spans in pieces:
                file.write(spans)
                self.counts["instances"] += len(spans)

    def write(self, shards: Sequence["_Shard"]) -> None:
        """Stage 3: spans to records, masked and in random order."""
        logging.info("*** Writing to output files ***")
        for shard in shards:
            logging.info("  %s", shard.path)
        total = self.counts["instances"]
        paths = tuple(shard.path for shard in shards)
        dealing = Dealing(paths, total, self._sizes.instances)
        parts = processes.track(
            self._run(stages.make_part, dealing.plans()),
            lambda part: part.num_instances,
            "Writing",
            "instances",
            total,
        )
        for part in parts:
            shards[part.shard].append(part)
            self.counts.update(part.counts)
            log_samples(self._config, part.samples)
