"""A classifier by ONNX Runtime, to compare an export of bert_tf with.

    python onnxruntime_serving.py --model=FOLDER --onnx=model.onnx

answers the texts that benchmarks/serving.py sends: fast tokenizer, padding to
the longest of the batch, the file that onnx_export.py wrote.

It needs what onnxruntime.txt lists, and nothing of bert_tf.
"""

import argparse

import answering
import numpy as np
import onnxruntime
from transformers import AutoConfig, AutoTokenizer


def main() -> None:
    arguments = parse_arguments()
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    names = AutoConfig.from_pretrained(arguments.model).id2label
    session = make_session(arguments.onnx, arguments.num_threads)
    inputs = [node.name for node in session.get_inputs()]

    def answer(texts: list[str]) -> tuple[list[str], list[list[float]]]:
        batch = tokenizer(
            texts,
            padding="longest",
            truncation=True,
            max_length=arguments.max_seq_length,
            return_tensors="np",
        )
        (logits,) = session.run(None, {name: batch[name] for name in inputs})
        probabilities = softmax(logits)
        labels = [names[best] for best in probabilities.argmax(-1).tolist()]
        return labels, probabilities.tolist()

    answering.serve(answer, ("onnxruntime", "transformers", "tokenizers"))


def parse_arguments() -> argparse.Namespace:
    parser = answering.parser()
    parser.add_argument("--onnx", required=True)
    return parser.parse_args()


def make_session(path: str, num_threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    return onnxruntime.InferenceSession(
        path, options, providers=["CPUExecutionProvider"]
    )


def softmax(logits: np.ndarray) -> np.ndarray:
    """Of the last axis of floats [B, C]."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


if __name__ == "__main__":
    main()
