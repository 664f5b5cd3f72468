"""Writes masked-LM and next-sentence examples for run_pretraining.py.

    python create_pretraining_data.py \\
        --input_file=sample_text.txt \\
        --output_file=/tmp/tf_examples.tfrecord \\
        --vocab_file=uncased_L-12_H-768_A-12/vocab.txt \\
        --dupe_factor=5

takes half a second, prints five of the examples and ends with "Wrote 54 total
instances"; /tmp/manifest.tf_examples.tfrecord.json says what is in them. All
CPUs are at work on larger texts: a core makes some 50,000 examples a second.

The text has one sentence a line and blank lines between documents; or, with
--input_format=jsonl, each line is a JSON object with a document in it.

    --runner=beam --beam_options='--runner=DataflowRunner --project=...'

has a cluster write the same files, byte for byte.
"""

import dataclasses

from absl import flags

import bert_tf.flags
from bert_tf.data import beam_creation, creation, jobs
from bert_tf.data.creation_config import DECODING_ERRORS, CreationConfig
from bert_tf.data.text_files import FORMATS
from bert_tf.errors import InputError

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "input_file",
    None,
    "Text files or globs, separated by commas (.gz and gs:// too): UTF-8.",
)
flags.DEFINE_enum(
    "input_format",
    "text",
    FORMATS,
    "text: one sentence a line, blank lines between documents. jsonl: a JSON "
    "object a line, which holds one document.",
)
flags.DEFINE_string(
    "jsonl_field",
    "text",
    "The field of the JSON objects that holds the text, one sentence a line.",
)
flags.DEFINE_string(
    "output_file",
    None,
    "TFRecord files to write, separated by commas; they get equal shares. A "
    "name that ends in .gz is compressed.",
)
flags.DEFINE_string(
    "vocab_file", None, "WordPiece vocabulary, one token a line."
)
flags.DEFINE_bool(
    "do_lower_case", True, "Lower-case the text, for uncased vocabularies."
)
flags.DEFINE_bool(
    "strip_accents", None, "Drop accents; by default as --do_lower_case."
)
flags.DEFINE_bool(
    "do_whole_word_mask",
    False,
    "Mask all pieces of a word or none. Words are known by their ##, so it "
    "does nothing for Chinese.",
)
flags.DEFINE_integer(
    "max_seq_length", 128, "Length of an example in tokens, padded."
)
flags.DEFINE_integer(
    "max_predictions_per_seq",
    20,
    "Masked tokens of an example at most; about max_seq_length times "
    "masked_lm_prob.",
)
flags.DEFINE_integer(
    "random_seed", 12345, "The same seed gives the same files, byte for byte."
)
flags.DEFINE_integer(
    "dupe_factor", 10, "Passes over the text, each cut and masked differently."
)
flags.DEFINE_float("masked_lm_prob", 0.15, "Share of the tokens to mask.")
flags.DEFINE_float(
    "short_seq_prob",
    0.1,
    "Share of the examples that are shorter than they could be.",
)
flags.DEFINE_bool(
    "next_sentence",
    True,
    "Write pairs of segments for next-sentence prediction; "
    "--nonext_sentence writes one segment of consecutive text.",
)
flags.DEFINE_float(
    "mask_share", 0.8, "Share of the masked tokens that become [MASK]."
)
flags.DEFINE_float(
    "random_share", 0.1, "Share of them that become a random word."
)
flags.DEFINE_float(
    "keep_share", 0.1, "Share of them that are left as they are."
)
flags.DEFINE_enum(
    "errors",
    "strict",
    DECODING_ERRORS,
    "What to do about bytes that are not UTF-8: stop, replace or ignore them.",
)
flags.DEFINE_integer(
    "num_workers",
    None,
    "Processes of this machine; by default one for each CPU. The files do not "
    "depend on it.",
    lower_bound=1,
)
flags.DEFINE_enum(
    "runner",
    "local",
    ["local", "beam"],
    "Who does the work: this machine, or whatever Apache Beam runs on. The "
    "files do not depend on it.",
)
flags.DEFINE_string(
    "beam_options",
    "",
    "Options of Beam's for --runner=beam, as on a command line: "
    "'--runner=FlinkRunner --flink_master=...'. Without any it runs in this "
    "process, for trying out.",
)


def main() -> None:
    """Reads the flags and does the job."""
    config = CreationConfig(
        **{
            name: FLAGS[name].value
            for name in (
                field.name for field in dataclasses.fields(CreationConfig)
            )
        }
    )
    with jobs.clean_stop():
        if FLAGS.runner == "beam":
            refuse("num_workers", "local", "Beam has options for that")
            beam_creation.create(config, FLAGS.beam_options)
        else:
            refuse("beam_options", "beam", "Beam takes no part in it")
            num_workers = FLAGS.num_workers or jobs.available_cpus()
            creation.create(config, num_workers)


def refuse(flag: str, runner: str, reason: str) -> None:
    """Raises an InputError if a flag of another runner is given."""
    if FLAGS[flag].present:
        raise InputError(
            f"Expected --{flag} with --runner={runner} only. Received: "
            f"--{flag}={FLAGS[flag].value} --runner={FLAGS.runner}; {reason}"
        )


if __name__ == "__main__":
    bert_tf.flags.run(
        main, required=["input_file", "output_file", "vocab_file"]
    )
