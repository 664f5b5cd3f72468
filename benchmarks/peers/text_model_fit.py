"""Fine-tuning by `TextClassifier.fit`, for benchmarks/fine_tuning.py.

    python text_model_fit.py '{"task_name": "mrpc", "data_dir": ...}'

trains, evaluates and saves the model with the defaults of the class and the
recipe of the other sides. The keys are the flags of our scripts. The last line
printed is JSON: scores under the names of the scripts, and the time of `fit`.
"""

import json
import math
import sys
import time

import bert_tf

# isort: split
import keras

from bert_tf.tasks import datasets


def main() -> None:
    setup = json.loads(sys.argv[1])
    keras.utils.set_random_seed(setup["random_seed"])
    data_set = datasets.find(setup["task_name"])
    train, dev = (
        columns(data_set, split, setup["data_dir"])
        for split in ("train", "dev")
    )
    options = (
        {"labels": data_set.labels}
        if data_set.labels
        else {"problem": "regression"}
    )
    model = bert_tf.TextClassifier.from_pretrained(
        setup["init_checkpoint"],
        max_seq_length=setup["max_seq_length"],
        **options,
    )
    batch_size, epochs = setup["train_batch_size"], setup["num_train_epochs"]
    num_steps = math.ceil(len(train[1]) / batch_size) * int(epochs)
    schedule = bert_tf.WarmupLinearDecay(
        setup["learning_rate"], num_steps, num_steps // 10
    )
    model.compile(
        bert_tf.AdamWeightDecay(
            schedule, global_clipnorm=1.0, bias_correction=True
        )
    )
    start = time.perf_counter()
    model.fit(
        *train,
        batch_size=batch_size,
        epochs=int(epochs),
        seed=setup["random_seed"],
        verbose=0,
    )
    seconds = time.perf_counter() - start
    scores = model.evaluate(*dev, verbose=0)
    model.save_pretrained(setup["output_dir"])
    answer = {f"eval_{name}": value for name, value in scores.items()}
    usage = {"global_step": num_steps, "train_seconds": seconds}
    print(json.dumps({**answer, **usage}))


def columns(
    data_set: datasets.DataSet, split: str, data_dir: str
) -> tuple[list, list]:
    """Returns the texts, or pairs of them, and the labels of a split."""
    [file] = data_set.split(split, data_dir)
    examples = file.read()
    texts = [
        (e.text_a, e.text_b) if data_set.is_pair else e.text_a for e in examples
    ]
    labels = [e.label for e in examples]
    return texts, labels if data_set.labels else [float(x) for x in labels]


if __name__ == "__main__":
    main()
