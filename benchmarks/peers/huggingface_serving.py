"""A classifier by transformers, to compare an export of bert_tf with.

    python huggingface_serving.py --model=FOLDER --precision=autocast --compile

answers the texts that benchmarks/serving.py sends, as users of transformers
do: fast tokenizer, padding to the longest of the batch, inference mode.

It needs what huggingface.txt lists, and nothing of bert_tf.
"""

import argparse
import contextlib

import answering
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.num_threads)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    model = load_model(arguments.model, arguments.precision)
    names = model.config.id2label
    compute = torch.compile(model, dynamic=True) if arguments.compile else model
    autocast = (
        torch.autocast("cpu", torch.bfloat16)
        if arguments.precision == "autocast"
        else contextlib.nullcontext()
    )

    @torch.inference_mode()
    def answer(texts: list[str]) -> tuple[list[str], list[list[float]]]:
        batch = tokenizer(
            texts,
            padding="longest",
            truncation=True,
            max_length=arguments.max_seq_length,
            return_tensors="pt",
        )
        with autocast:
            logits = compute(**batch).logits
        probabilities = logits.float().softmax(-1)
        labels = [names[best] for best in probabilities.argmax(-1).tolist()]
        return labels, probabilities.tolist()

    answering.serve(answer, ("torch", "transformers", "tokenizers"))


def parse_arguments() -> argparse.Namespace:
    parser = answering.parser()
    parser.add_argument(
        "--precision",
        choices=("float32", "autocast", "bfloat16"),
        default="float32",
        help="autocast: weights in float32, products in bfloat16",
    )
    parser.add_argument("--compile", action="store_true")
    return parser.parse_args()


def load_model(folder: str, precision: str):
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=dtype
    )
    return model.eval()


if __name__ == "__main__":
    main()
