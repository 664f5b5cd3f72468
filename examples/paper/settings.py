"""What all programs of the paper's tables can be told.

Their flags, what these come to, and how one of the paper's own sizes is trained
(--full).
"""

import dataclasses

from absl import flags

from bert_tf import files
from bert_tf.errors import InputError

FLAGS = flags.FLAGS
# They are flags of the program that asks for them; --help lists them there.
flags.disclaim_key_flags()

# The folder of a task, the paper's heading, and the score of its table 5; for
# those that it lacks, the one of GLUE.
GLUE = {
    "MNLI": ("MNLI-m", "eval_accuracy"),
    "QNLI": ("QNLI", "eval_accuracy"),
    "MRPC": ("MRPC", "eval_accuracy"),
    "SST-2": ("SST-2", "eval_accuracy"),
    "QQP": ("QQP", "eval_accuracy"),
    "RTE": ("RTE", "eval_accuracy"),
    "CoLA": ("CoLA", "eval_mcc"),
    "STS-B": ("STS-B", "eval_spearman"),
}


def define_flags(
    *,
    do_lower_case: bool = True,
    max_seq_length: int = 32,
    learning_rate: float = 1.5e-3,
) -> None:
    """Defines what the programs share.

    Args:
      do_lower_case: The default of the flag.
      max_seq_length: The default of the flag.
      learning_rate: The default of the flag.
    """
    _define_text_flags(do_lower_case)
    _define_pretraining_flags(max_seq_length, learning_rate)
    _define_fine_tuning_flags()
    flags.DEFINE_string("output_dir", None, "Folder of tables and runs.")
    flags.DEFINE_multi_string(
        "also",
        [],
        "What else all that trains is given, as it stands there: "
        "--also=--mixed_precision=bfloat16; more than once for more flags.",
    )
    flags.DEFINE_bool(
        "full", False, "Print the commands of the paper's sizes, run nothing."
    )


def _define_text_flags(do_lower_case: bool) -> None:
    """Defines what is read, and the words that it is cut into."""
    flags.DEFINE_string(
        "input_file",
        None,
        "Text to pre-train on, as create_pretraining_data.py takes it: a "
        "sentence a line, blank lines between documents; globs, with commas.",
    )
    flags.DEFINE_string(
        "vocab_file",
        None,
        "WordPiece vocabulary; without it, one of --vocab_size is learned.",
    )
    flags.DEFINE_integer("vocab_size", 2000, "Words of a learned vocabulary.")
    flags.DEFINE_bool(
        "do_lower_case", do_lower_case, "Whether it is an uncased one."
    )
    flags.DEFINE_integer("dupe_factor", 5, "Passes over the text, as masked.")


def _define_pretraining_flags(
    max_seq_length: int, learning_rate: float
) -> None:
    """Defines how models are pre-trained."""
    flags.DEFINE_integer(
        "max_seq_length", max_seq_length, "Tokens of a sequence."
    )
    flags.DEFINE_integer(
        "first_seq_length",
        32,
        "Those of the first nine tenths of the steps, as the paper has 128 "
        "first and 512 last, if they are fewer. The last tenth has to teach "
        "the new positions: in some hundred steps a low rate does not.",
        lower_bound=8,
    )
    flags.DEFINE_integer("num_train_steps", 8000, "Steps of pre-training.")
    flags.DEFINE_integer("train_batch_size", 64, "Examples of such a step.")
    flags.DEFINE_float("learning_rate", learning_rate, "Rate of pre-training.")
    flags.DEFINE_float(
        "warmup_proportion",
        0.25,
        "Share of the steps of pre-training in which its rate rises. With a "
        "tenth, models of four layers and more may never learn anything.",
        lower_bound=0.0,
        upper_bound=1.0,
    )
    flags.DEFINE_integer(
        "num_pretraining_seeds",
        1,
        "Pre-trainings of each model, that the fine-tunings take turns with.",
        lower_bound=1,
    )


def _define_fine_tuning_flags() -> None:
    """Defines how often and how long models are fine-tuned."""
    flags.DEFINE_integer(
        "num_seeds", 3, "Fine-tunings of each cell.", lower_bound=1
    )
    flags.DEFINE_float("num_train_epochs", 3.0, "Epochs of fine-tuning.")
    flags.DEFINE_integer("fine_tuning_batch_size", 32, "Examples of its steps.")
    flags.DEFINE_float("fine_tuning_learning_rate", 2.5e-4, "Rate of it.")
    flags.DEFINE_integer(
        "max_examples",
        30_000,
        "Examples that a fine-tuning sees at most, all epochs together; it has "
        "fewer epochs where there are more.",
        lower_bound=1,
    )


def define_model_flag(default: str) -> None:
    """Defines the size of a program that has one for all rows."""
    flags.DEFINE_string(
        "model_size", default, "Size of the models, as run_pretraining.py."
    )


def define_entity_flags() -> None:
    """Defines what finds entities: fine-tuned, and by LSTMs on features."""
    flags.DEFINE_string("conll_dir", None, "Folder of CoNLL-2003.")
    flags.DEFINE_integer("lstm_size", 256, "Size of the LSTMs.", lower_bound=1)
    flags.DEFINE_float("feature_learning_rate", 1e-3, "Rate of the LSTMs.")
    flags.DEFINE_float("feature_num_train_epochs", 3.0, "Epochs of the LSTMs.")


def define_task_flags(*names: str) -> None:
    """Defines the tasks of sentences.

    Args:
      *names: Those that the paper's table has.
    """
    flags.DEFINE_string(
        "data_dir", None, "Folder of GLUE's folders: MRPC, SST-2 ..."
    )
    flags.DEFINE_list(
        "tasks",
        list(names),
        f"Some of {', '.join(GLUE)}. Those without a folder are left out.",
    )


@dataclasses.dataclass(frozen=True)
class Settings:
    """How long, how much and how often.

    Attributes:
      phases: Length of sequences, and the step up to which they have it.
      length: Tokens of what is fine-tuned, but for SQuAD.
      warmup_steps: Steps in which the rate of pre-training rises.
      max_examples: As the flag; None for all epochs whatever they cost.
      squad_length: Tokens of a question and its text.
    """

    phases: tuple[tuple[int, int], ...]
    length: int
    train_batch_size: int
    learning_rate: float
    warmup_steps: int
    dupe_factor: int
    vocab_size: int
    num_seeds: int
    num_train_epochs: float
    fine_tuning_batch_size: int
    fine_tuning_learning_rate: float
    max_examples: int | None
    squad_length: int


# Of the published vocabularies.
UNCASED_VOCAB_SIZE, CASED_VOCAB_SIZE = 30_522, 28_996

# Sections 4.1 and 5.2 and appendices A.2 and A.3. Of the four rates that the
# paper chose from by the development set, 3e-5 is one in the middle.
FULL = Settings(
    phases=((128, 900_000), (512, 1_000_000)),
    length=128,
    train_batch_size=256,
    learning_rate=1e-4,
    warmup_steps=10_000,
    dupe_factor=10,
    vocab_size=UNCASED_VOCAB_SIZE,
    num_seeds=5,
    num_train_epochs=3.0,
    fine_tuning_batch_size=32,
    fine_tuning_learning_rate=3e-5,
    max_examples=None,
    squad_length=384,
)


def current_settings() -> Settings:
    """Those of the command line; with --full the paper's, but for those given.

    Raises:
      InputError: There is no such text, or a flag does not go with --full.
    """
    if FLAGS.full:
        _require_no_steps()
        vocab_size = UNCASED_VOCAB_SIZE
        if not FLAGS.do_lower_case:
            vocab_size = CASED_VOCAB_SIZE
        base = dataclasses.replace(FULL, vocab_size=vocab_size)
    else:
        if FLAGS.input_file:
            files.expand(FLAGS.input_file, "input_file")
        length = FLAGS.max_seq_length
        base = dataclasses.replace(
            FULL,
            phases=_phases(),
            length=length,
            warmup_steps=round(FLAGS.warmup_proportion * FLAGS.num_train_steps),
            # A model has 512 positions.
            squad_length=min(3 * length, 512),
        )
    names = [field.name for field in dataclasses.fields(Settings)]
    given = {n: value_or(n, getattr(base, n)) for n in names if n in FLAGS}
    return dataclasses.replace(base, **given)


def _phases() -> tuple[tuple[int, int], ...]:
    """Those of the flags: one, or two as the paper's."""
    first, steps = FLAGS.first_seq_length, FLAGS.num_train_steps
    last = (FLAGS.max_seq_length, steps)
    if first >= FLAGS.max_seq_length or steps < 10:
        return (last,)
    return (first, steps - steps // 10), last


def _require_no_steps() -> None:
    """Raises InputError if --full is told of other steps."""
    names = ("first_seq_length", "max_seq_length", "num_train_steps")
    for name in (*names, "warmup_proportion"):
        if FLAGS[name].present:
            raise InputError(
                f"expected --full without --{name}: it has the paper's "
                f"lengths, steps and warm-up. Received: {FLAGS[name].value}"
            )


def value_or(name: str, full: object) -> object:
    """A flag's value; with --full the paper's where it is not given."""
    flag = FLAGS[name]
    return full if FLAGS.full and not flag.present else flag.value


def model_size() -> str:
    """The one of all rows: BERT-Base with --full."""
    return value_or("model_size", "base")


def also() -> dict[str, object]:
    """The flags of --also.

    Raises:
      InputError: One of them is not to be given there.
    """
    pairs = (word.removeprefix("--").partition("=") for word in FLAGS.also)
    given = {name: value if equals else True for name, equals, value in pairs}
    for name in given:
        if name in FLAGS:
            raise InputError(
                "expected --also with flags that this program lacks. Received: "
                f"--{name}, which is to be given by itself"
            )
        if name == "random_seed":
            raise InputError(
                "expected --also without --random_seed. Received: one for all; "
                "--num_seeds and --num_pretraining_seeds say how many there are"
            )
    return given
