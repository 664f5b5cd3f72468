"""BERT of transformers, for benchmarks/training_step.py and benchmarks/gpu.py.

Trains BertForPreTraining as its users do: AdamW, clipping, bfloat16 by autocast
over float32 weights, labels for every position. Or runs BertModel forward, with
weights in bfloat16. Attention is torch's SDPA, which is fastest without a mask:
there is one only where there is padding. Examples that share a row elsewhere
have a padded row each. It needs huggingface.txt, and nothing of bert_tf.
"""

import argparse
import contextlib
import functools
import itertools
import sys

import side
import torch
from transformers import BertConfig, BertForPreTraining, BertModel

# The label of positions that are not masked.
NOT_MASKED = -100


def make(request, compiled):
    device, dtype = request["device"], getattr(torch, request["precision"])
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(
            f"error: torch {torch.__version__} cannot use the GPU; remove "
            f"{sys.prefix} and install another one"
        )
    torch.manual_seed(0)
    config = BertConfig(**request["config"], attn_implementation="sdpa")
    batch = {k: v.to(device) for k, v in random_batch(request).items()}
    make_step = training_step if request["is_training"] else forward_pass
    step = make_step(config, batch, dtype, compiled)
    matrix = torch.randn([request["matrix_size"]] * 2).to(device, dtype)

    def repeated(work, times):
        for _ in range(times):
            work()
        if device == "cuda":
            torch.cuda.synchronize()

    return side.Work(
        lambda: repeated(step, request["steps"]),
        lambda: repeated(lambda: matrix @ matrix, request["products"]),
        lambda: torch.cuda.max_memory_allocated() if device == "cuda" else None,
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
    context = (
        contextlib.nullcontext()
        if dtype == torch.float32
        else torch.autocast(device, dtype)
    )

    def step():
        optimizer.zero_grad(set_to_none=True)
        with context:
            loss = compute(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return step


def forward_pass(config, batch, dtype, compiled):
    """Returns a function that runs the encoder and its pooler."""
    model = BertModel(config).to(batch["input_ids"].device.type, dtype).eval()
    compute = torch.compile(model) if compiled else model
    names = {"input_ids", "attention_mask", "token_type_ids"}
    inputs = {name: batch[name] for name in names & batch.keys()}

    def step():
        with torch.inference_mode():
            return compute(**inputs)

    return step


def random_batch(request):
    """Returns examples of random ids, a row each."""
    lengths = list(itertools.chain.from_iterable(request["rows"]))
    shape = len(lengths), request["max_seq_length"]
    vocab_size = request["config"]["vocab_size"]
    share = request["max_predictions_per_seq"] / shape[1]
    labels = torch.full(shape, NOT_MASKED)
    for row, length in zip(labels, lengths, strict=True):
        masked = torch.randperm(length)[: round(share * length)]
        row[masked] = torch.randint(vocab_size, masked.shape)
    mask = torch.arange(shape[1]) < torch.tensor(lengths)[:, None]
    return {
        "input_ids": torch.randint(vocab_size, shape),
        **({} if mask.all() else {"attention_mask": mask.long()}),
        "token_type_ids": torch.randint(2, shape),
        "labels": labels,
        "next_sentence_label": torch.ones(shape[0], dtype=torch.long),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_threads", type=int, required=True)
    parser.add_argument("--compile", action="store_true")
    arguments = parser.parse_args()
    side.serve_training(
        functools.partial(make, compiled=arguments.compile),
        arguments.num_threads,
        ("torch", "transformers"),
    )
