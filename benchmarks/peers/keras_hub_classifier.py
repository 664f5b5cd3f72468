"""Fine-tuning by KerasHub's `BertTextClassifier`, for fine_tuning.py.

    python keras_hub_classifier.py '{"task_name": "sst-2", "data_dir": ...}'

trains and evaluates a classifier with `fit`, as KerasHub's users do, with the
recipe of the other sides except for the warm-up. The keys are the flags of our
scripts; regression tasks are not supported. The last line printed is JSON:
accuracy, loss, the time of `fit`, versions. It needs keras_hub.txt, and nothing
of bert_tf.
"""

import importlib.metadata
import json
import math
import pathlib
import sys
import time

import keras
import keras_hub
import numpy as np

# Task -> the columns of the texts, and of the label.
TASKS = {"mrpc": ((3, 4), 0), "sst-2": ((0,), 1)}


def main():
    setup = json.loads(sys.argv[1])
    keras.utils.set_random_seed(setup["random_seed"])
    checkpoint = setup["init_checkpoint"]
    preprocessor = keras_hub.models.BertTextClassifierPreprocessor.from_preset(
        checkpoint, sequence_length=setup["max_seq_length"]
    )
    model = keras_hub.models.BertTextClassifier.from_preset(
        checkpoint, num_classes=2, preprocessor=preprocessor
    )
    (x, y), dev = (columns(setup, split) for split in ("train", "dev"))
    batch_size, epochs = setup["train_batch_size"], setup["num_train_epochs"]
    num_steps = math.ceil(len(y) / batch_size) * int(epochs)
    optimizer = keras.optimizers.AdamW(
        keras.optimizers.schedules.PolynomialDecay(
            setup["learning_rate"], num_steps, 0.0
        ),
        weight_decay=0.01,
        global_clipnorm=1.0,
    )
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    start = time.perf_counter()
    model.fit(x, y, batch_size=batch_size, epochs=int(epochs), verbose=0)
    seconds = time.perf_counter() - start
    scores = model.evaluate(
        *dev, batch_size=batch_size, verbose=0, return_dict=True
    )
    model.save_to_preset(setup["output_dir"])
    answer = {
        "eval_accuracy": scores["accuracy"],
        "eval_loss": scores["loss"],
        "global_step": num_steps,
        "train_seconds": seconds,
        "versions": {
            name: importlib.metadata.version(name)
            for name in ("tensorflow", "keras", "keras-hub")
        },
    }
    print(json.dumps(answer))


def columns(setup, split):
    """Returns the texts, or two columns of them, and the labels of a file."""
    texts, label = TASKS[setup["task_name"]]
    path = pathlib.Path(setup["data_dir"], f"{split}.tsv")
    lines = path.read_bytes().decode("utf-8-sig").split("\n")[1:]
    rows = [line.rstrip("\r").split("\t") for line in lines if line]
    x = tuple(np.array([row[column] for row in rows]) for column in texts)
    y = np.array([int(row[label]) for row in rows])
    return (x if len(x) > 1 else x[0]), y


if __name__ == "__main__":
    main()
