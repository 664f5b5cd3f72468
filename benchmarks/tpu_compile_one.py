"""Compiles one step for one kind of TPU; benchmarks/tpu_compile.py runs it.

    python benchmarks/tpu_compile_one.py --task=pretraining --kind=training \\
        --model=base --max_seq_length=128 --batch_size=32 --chip=v5e

prints what it takes of the chip's memory and what there is, in bytes, as JSON;
"memory" is null if it does not fit. A process of its own, for neither
TensorFlow nor the compiler gives back all the memory that they took.
"""

import dataclasses
import json

import keras
import tpu_compiler
import tpu_steps
from absl import app, flags
from tpu_chips import CHIPS
from tpu_compiler import OutOfMemoryError

import bert_tf.quiet_tensorflow  # noqa: F401
from bert_tf.config import BertConfig

FLAGS = flags.FLAGS
# That of BERT's uncased English models.
VOCABULARY = 30522

flags.DEFINE_enum("task", None, list(tpu_steps.TASKS), "The task.")
flags.DEFINE_enum("kind", None, list(tpu_steps.STEPS), "The kind of step.")
flags.DEFINE_string("model", None, "Size of the model.")
flags.DEFINE_integer("max_seq_length", None, "Places of a sequence.")
flags.DEFINE_integer("batch_size", None, "Examples of a chip.")
flags.DEFINE_enum("chip", None, list(CHIPS), "The kind of TPU.")
flags.DEFINE_integer("chips", 4, "How many share a batch, up to 4.")
flags.mark_flags_as_required(
    ["task", "kind", "model", "max_seq_length", "batch_size", "chip"]
)


def main() -> None:
    keras.config.set_dtype_policy("mixed_bfloat16")
    step = tpu_steps.Step(
        FLAGS.task,
        FLAGS.kind,
        BertConfig.from_name(FLAGS.model, VOCABULARY),
        FLAGS.max_seq_length,
        FLAGS.batch_size,
    )
    chip, text = CHIPS[FLAGS.chip], step.lower(FLAGS.chips)
    available = tpu_compiler.available_memory(chip)
    try:
        memory = dataclasses.asdict(
            tpu_compiler.compile_for(chip, text, FLAGS.chips)
        )
    except OutOfMemoryError:
        memory = None
    print(json.dumps({"memory": memory, "available": available}))


if __name__ == "__main__":
    app.run(lambda argv: main())
