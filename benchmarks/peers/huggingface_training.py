"""BERT of transformers, for benchmarks/training_step.py.

Trains BertForPreTraining as its users do: AdamW, clipping, bfloat16 by autocast
over float32 weights, labels for every position. Attention is torch's SDPA,
without a mask, which is fastest. It needs huggingface.txt, and nothing of
bert_tf.
"""

import contextlib
import sys

import numpy as np
import side
import torch
from transformers import BertConfig, BertForPreTraining

# The label of positions that are not masked.
NOT_MASKED = -100


def make(setup):
    device, dtype = setup["device"], getattr(torch, setup["precision"])
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(
            f"error: torch {torch.__version__} cannot use the GPU; remove "
            f"{sys.prefix} and install a torch that can"
        )
    torch.manual_seed(0)
    config = BertConfig(**setup["config"], attn_implementation="sdpa")
    batch = {k: v.to(device) for k, v in inputs_of(setup).items()}
    step = training_step(config, batch, dtype, setup["side"] == "compiled")
    matrix = torch.randn([setup["matrix_size"]] * 2).to(device, dtype)

    def repeated(work, times):
        for _ in range(times):
            last = work()
        if device == "cuda":
            torch.cuda.synchronize()
        return last

    return (
        lambda: repeated(step, setup["steps"]),
        lambda: repeated(lambda: matrix @ matrix, setup["products"]),
    )


def training_step(config, batch, dtype, compiled):
    """Returns a function that makes one update and returns the loss."""
    device = batch["input_ids"].device.type
    model = BertForPreTraining(config).to(device).train()
    compute = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=1e-4,
        eps=1e-6,
        weight_decay=0.01,
        fused=True if device == "cuda" else None,
    )
    context = contextlib.nullcontext()
    if dtype != torch.float32:
        context = torch.autocast(device, dtype)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with context:
            loss = compute(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return step


def inputs_of(setup):
    """Returns the batch of all sides under the names of transformers."""
    batch = side.batch_of(setup)
    labels = np.full_like(batch["input_ids"], NOT_MASKED)
    np.put_along_axis(
        labels, batch["masked_lm_positions"], batch["masked_lm_ids"], axis=1
    )
    arrays = {
        "input_ids": batch["input_ids"],
        "token_type_ids": batch["segment_ids"],
        "labels": labels,
        "next_sentence_label": batch["next_sentence_labels"][:, 0],
    }
    return {name: torch.tensor(x).long() for name, x in arrays.items()}


if __name__ == "__main__":
    side.serve_training(make, ("torch", "transformers"))
