"""A classifier that answers texts, for benchmarks/serving.py.

    python serving.py --backend=torch --model=FOLDER --precision=autocast

The backends are an export of bert_tf, which needs TensorFlow and TensorFlow
Text only; transformers on torch (huggingface.txt); and ONNX Runtime
(onnxruntime.txt), with the file that onnx_export.py wrote. All pad to the
longest text of a batch. A request is a list of batches of texts.
"""

import argparse
import contextlib
import os
import time

import side


def saved_model(arguments):
    """Returns a function from texts to their labels and probabilities."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  (registers the tokenizer's operation)

    loaded = tf.saved_model.load(arguments.model)
    function = loaded.signatures["serving_default"]

    def answer(texts):
        answers = function(text=tf.constant(texts))
        labels = [label.decode() for label in answers["label"].numpy()]
        return labels, answers["probabilities"].numpy().tolist()

    return answer


def torch(arguments):
    """The same with transformers' fast tokenizer and its model on torch."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.set_num_threads(arguments.num_threads)
    is_autocast = arguments.precision == "autocast"
    dtype = "float32" if is_autocast else arguments.precision
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    model = AutoModelForSequenceClassification.from_pretrained(
        arguments.model, dtype=getattr(torch, dtype)
    ).eval()
    names = model.config.id2label
    compute = torch.compile(model, dynamic=True) if arguments.compile else model
    context = (
        torch.autocast("cpu", torch.bfloat16)
        if is_autocast
        else contextlib.nullcontext()
    )

    @torch.inference_mode()
    def answer(texts):
        batch = encode(tokenizer, texts, arguments, "pt")
        with context:
            logits = compute(**batch).logits
        probabilities = logits.float().softmax(-1)
        labels = [names[best] for best in probabilities.argmax(-1).tolist()]
        return labels, probabilities.tolist()

    return answer


def onnxruntime(arguments):
    """The same with ONNX Runtime."""
    import numpy as np
    import onnxruntime
    from transformers import AutoConfig, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    names = AutoConfig.from_pretrained(arguments.model).id2label
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = arguments.num_threads
    session = onnxruntime.InferenceSession(
        arguments.onnx, options, providers=["CPUExecutionProvider"]
    )
    inputs = [node.name for node in session.get_inputs()]

    def answer(texts):
        batch = encode(tokenizer, texts, arguments, "np")
        (logits,) = session.run(None, {name: batch[name] for name in inputs})
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
        probabilities = powers / powers.sum(axis=-1, keepdims=True)
        labels = [names[best] for best in probabilities.argmax(-1).tolist()]
        return labels, probabilities.tolist()

    return answer


def encode(tokenizer, texts, arguments, tensors):
    return tokenizer(
        texts,
        padding="longest",
        truncation=True,
        max_length=arguments.max_seq_length,
        return_tensors=tensors,
    )


# Backend -> makes the function, packages.
BACKENDS = {
    "saved_model": (saved_model, ("tensorflow", "tensorflow-text")),
    "torch": (torch, ("torch", "transformers", "tokenizers")),
    "onnxruntime": (onnxruntime, ("onnxruntime", "transformers", "tokenizers")),
}


def answered(answer, batches):
    """Answers batches of texts one after another.

    Returns:
      The usage of all batches, the time below which half and 90 % of them were
      answered, and "labels" and "probabilities" of all texts.
    """
    seconds, labels, probabilities = [], [], []
    cpu_start = time.process_time()
    for texts in batches:
        start = time.perf_counter()
        names, numbers = answer(texts)
        seconds.append(time.perf_counter() - start)
        labels += names
        probabilities += numbers
    cpu_seconds = time.process_time() - cpu_start
    ordered = sorted(seconds)
    return {
        "times": 1,
        "seconds": sum(seconds),
        "cpu_seconds": cpu_seconds,
        "median_seconds": ordered[len(ordered) // 2],
        "p90_seconds": ordered[-(len(ordered) // 10) - 1],
        "labels": labels,
        "probabilities": probabilities,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", choices=BACKENDS, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--onnx")
    parser.add_argument(
        "--precision",
        choices=("float32", "autocast", "bfloat16"),
        default="float32",
        help="autocast: weights in float32, products in bfloat16",
    )
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--num_threads", type=int, default=2)
    arguments = parser.parse_args()
    make, packages = BACKENDS[arguments.backend]
    answer = make(arguments)

    def reply(request):
        found = answered(answer, request["batches"])
        if not request["with_answers"]:
            del found["labels"], found["probabilities"]
        return found

    side.serve(reply, packages)


if __name__ == "__main__":
    main()
