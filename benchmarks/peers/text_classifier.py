"""A classifier that answers texts, for benchmarks/serving.py.

The backends are an export of bert_tf, which needs TensorFlow and TensorFlow
Text only; transformers on torch (huggingface.txt); and ONNX Runtime
(onnxruntime.txt). All pad to the longest text of a batch. A request is a list
of batches of texts.
"""

import contextlib
import json
import pathlib
import sys
import tempfile
import time

import side

INPUTS = ["input_ids", "attention_mask", "token_type_ids"]


def saved_model(setup):
    """Returns a function from texts to their labels and probabilities."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  (registers the tokenizer's operation)

    num_threads = setup["num_threads"]
    tf.config.threading.set_intra_op_parallelism_threads(num_threads)
    tf.config.threading.set_inter_op_parallelism_threads(num_threads)
    loaded = tf.saved_model.load(setup["model"])
    function = loaded.signatures["serving_default"]

    def answer(texts):
        answers = function(text=tf.constant(texts))
        labels = [label.decode() for label in answers["label"].numpy()]
        return labels, answers["probabilities"].numpy().tolist()

    return answer


def torch(setup):
    """The same with transformers' fast tokenizer and its model on torch."""
    import torch
    from transformers import AutoModelForSequenceClassification

    torch.set_num_threads(setup["num_threads"])
    is_autocast = setup["precision"] == "autocast"
    dtype = "float32" if is_autocast else setup["precision"]
    model = AutoModelForSequenceClassification.from_pretrained(
        setup["model"], dtype=getattr(torch, dtype)
    ).eval()
    compute = model
    if setup["compile"]:
        compute = torch.compile(model, dynamic=True)
    context = contextlib.nullcontext()
    if is_autocast:
        context = torch.autocast("cpu", torch.bfloat16)
    encode = encoder(setup, "pt")

    @torch.inference_mode()
    def answer(texts):
        with context:
            logits = compute(**encode(texts)).logits
        probabilities = logits.float().softmax(-1)
        best = probabilities.argmax(-1).tolist()
        return [model.config.id2label[i] for i in best], probabilities.tolist()

    return answer


def onnxruntime(setup):
    """The same with ONNX Runtime."""
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = setup["num_threads"]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.onnx"
        names = write_onnx(setup["model"], path)
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
    inputs = [node.name for node in session.get_inputs()]
    encode = encoder(setup, "np")

    def answer(texts):
        batch = encode(texts)
        (logits,) = session.run(None, {name: batch[name] for name in inputs})
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
        probabilities = powers / powers.sum(axis=-1, keepdims=True)
        labels = [names[best] for best in probabilities.argmax(-1).tolist()]
        return labels, probabilities.tolist()

    return answer


def write_onnx(folder, path):
    """Writes a classifier as an optimized ONNX file; returns its labels.

    ONNX Runtime's optimizer for BERT fuses attention, layer norm with its
    residual, and GELU with its bias. It recognizes attention only as torch's
    older exporter writes the plain ("eager") form.
    """
    import torch
    from onnxruntime.transformers import optimizer
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    plain = str(path.with_suffix(".plain.onnx"))
    axes = {0: "batch", 1: "sequence"}
    # An exporter may take a size of 1 for a constant.
    example = torch.ones((2, 7), dtype=torch.int64)
    torch.onnx.export(
        model,
        (example,) * len(INPUTS),
        plain,
        input_names=INPUTS,
        output_names=["logits"],
        dynamic_axes=dict.fromkeys(INPUTS, axes) | {"logits": {0: "batch"}},
        opset_version=17,
        dynamo=False,
    )
    config = model.config
    optimized = optimizer.optimize_model(
        plain,
        model_type="bert",
        num_heads=config.num_attention_heads,
        hidden_size=config.hidden_size,
    )
    fused = optimized.get_fused_operator_statistics()["Attention"]
    if fused != config.num_hidden_layers:
        raise SystemExit(
            f"error: ONNX Runtime fused the attention of {fused} of "
            f"{config.num_hidden_layers} layers; the model would be slow"
        )
    optimized.save_model_to_file(str(path))
    return config.id2label


def encoder(setup, tensors):
    """Returns a function from texts to the inputs of the model."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(setup["model"])
    return lambda texts: tokenizer(
        texts,
        padding="longest",
        truncation=True,
        max_length=setup["max_seq_length"],
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

    Returns the usage of all batches, the time below which half and 90 % of them
    were answered, and "labels" and "probabilities" of all texts.
    """
    seconds, labels, probabilities = [], [], []
    cpu_start = time.process_time()
    for texts in batches:
        start = time.perf_counter()
        names, numbers = answer(texts)
        seconds.append(time.perf_counter() - start)
        labels += names
        probabilities += numbers
    ordered = sorted(seconds)
    return {
        "times": 1,
        "seconds": sum(seconds),
        "cpu_seconds": time.process_time() - cpu_start,
        "median_seconds": ordered[len(ordered) // 2],
        "p90_seconds": ordered[-(len(ordered) // 10) - 1],
        "labels": labels,
        "probabilities": probabilities,
    }


def start(setup):
    make, _ = BACKENDS[setup["backend"]]
    answer = make(setup)

    def reply(request):
        found = answered(answer, request["batches"])
        if not request["with_answers"]:
            del found["labels"], found["probabilities"]
        return found

    return reply


if __name__ == "__main__":
    backend = json.loads(sys.argv[1])["backend"]
    side.serve(start, BACKENDS[backend][1])
