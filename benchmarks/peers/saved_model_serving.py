"""A SavedModel of a classifier, answering the texts of benchmarks/serving.py.

    python saved_model_serving.py --model=EXPORT_DIR/VERSION

TensorFlow and TensorFlow Text, as in a server, and nothing of bert_tf.
"""

import argparse
import os

# Before TensorFlow is loaded.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import answering
import tensorflow as tf
import tensorflow_text  # noqa: F401  (it brings the tokenizer's operation)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    loaded = tf.saved_model.load(parser.parse_args().model)
    function = loaded.signatures["serving_default"]

    def answer(texts: list[str]) -> tuple[list[str], list[list[float]]]:
        answers = function(text=tf.constant(texts))
        labels = [label.decode() for label in answers["label"].numpy()]
        return labels, answers["probabilities"].numpy().tolist()

    answering.serve(answer, ("tensorflow", "tensorflow-text"))


if __name__ == "__main__":
    main()
