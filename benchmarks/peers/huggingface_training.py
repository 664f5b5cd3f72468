"""BertForPreTraining of transformers, for benchmarks/training_step.py.

    python huggingface_training.py --num_threads=2 --compile

trains as its users do: AdamW, clipping, bfloat16 by autocast, labels for every
position, of which those that are not masked say so.

It needs what huggingface.txt lists, and nothing of bert_tf.
"""

import contextlib
import sys
from collections.abc import Mapping
from typing import Any

import torch
import training
from transformers import BertConfig, BertForPreTraining

# What the loss passes over.
NOT_MASKED = -100
# It follows --num_threads, which training.main reads.
COMPILE = "--compile"


def make(request: Mapping[str, Any], compiled: bool):
    torch.manual_seed(0)
    config = BertConfig(**request["config"], attn_implementation="sdpa")
    model = BertForPreTraining(config).train()
    compute = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, eps=1e-6, weight_decay=0.01
    )
    batch = random_batch(request)
    half = request["precision"] == "bfloat16"
    dtype = torch.bfloat16 if half else torch.float32

    def update() -> float:
        optimizer.zero_grad(set_to_none=True)
        context = torch.autocast("cpu", dtype) if half else NO_CONTEXT
        with context:
            loss = compute(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    matrix = torch.randn([training.SIZE] * 2).to(dtype)
    return update, lambda: matrix @ matrix


NO_CONTEXT = contextlib.nullcontext()


def random_batch(request: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Full-length examples of random ids."""
    shape = request["batch_size"], request["max_seq_length"]
    vocab_size = request["config"]["vocab_size"]
    labels = torch.full(shape, NOT_MASKED)
    for row in labels:
        places = torch.randperm(shape[1])[: request["max_predictions_per_seq"]]
        row[places] = torch.randint(vocab_size, places.shape)
    return {
        "input_ids": torch.randint(vocab_size, shape),
        "attention_mask": torch.ones(shape, dtype=torch.long),
        "token_type_ids": torch.randint(2, shape),
        "labels": labels,
        "next_sentence_label": torch.ones(shape[0], dtype=torch.long),
    }


if __name__ == "__main__":
    compiled = COMPILE in sys.argv
    if compiled:
        sys.argv.remove(COMPILE)
    training.main(
        lambda request: make(request, compiled), ("torch", "transformers")
    )
