"""BERT of transformers, for benchmarks/training_step.py and benchmarks/gpu.py.

    python huggingface_training.py --num_threads=2 --compile

trains BertForPreTraining as its users do: AdamW, clipping, bfloat16 by autocast
over float32 weights, labels for every position, of which those that are not
masked say so. Or it runs BertModel forward, in bfloat16 with weights of that
precision. Attention is torch's own, SDPA, which is fastest without a mask: only
where there is padding there is one. Examples that share a row elsewhere have a
row each here, and padding behind them.

It needs what huggingface.txt lists, and nothing of bert_tf.
"""

import contextlib
import itertools
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
import training
from transformers import BertConfig, BertForPreTraining, BertModel

# What the loss passes over.
NOT_MASKED = -100
# Of a batch what the encoder takes; the mask may be missing.
INPUTS = {"input_ids", "attention_mask", "token_type_ids"}
# It follows --num_threads, which training.main reads.
COMPILE = "--compile"
ON_GPU = "cuda"


def make(request: Mapping[str, Any], compiled: bool) -> training.Work:
    device, dtype = request["device"], getattr(torch, request["precision"])
    if device == ON_GPU and not torch.cuda.is_available():
        raise SystemExit(
            "error: expected a torch that can use the GPU. Received: torch "
            f"{torch.__version__}; remove {sys.prefix} for another one"
        )
    torch.manual_seed(0)
    config = BertConfig(**request["config"], attn_implementation="sdpa")
    batch = {k: v.to(device) for k, v in random_batch(request).items()}
    make_step = training_step if request["is_training"] else forward_pass
    step = make_step(config, batch, dtype, compiled)
    matrix = torch.randn([request["matrix_size"]] * 2).to(device, dtype)

    def steps() -> None:
        for _ in range(request["steps"]):
            step()
        wait(device)

    def products() -> None:
        for _ in range(request["products"]):
            matrix @ matrix
        wait(device)

    return training.Work(steps, products, lambda: peak_bytes(device))


def training_step(
    config: BertConfig,
    batch: Mapping[str, torch.Tensor],
    dtype: torch.dtype,
    compiled: bool,
) -> Callable[[], Any]:
    """Forward, backward, clipping, update; gives the loss."""
    device = batch["input_ids"].device.type
    model = BertForPreTraining(config).to(device).train()
    compute = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=1e-4,
        eps=1e-6,
        weight_decay=0.01,
        fused=True if device == ON_GPU else None,
    )
    context = (
        contextlib.nullcontext()
        if dtype == torch.float32
        else torch.autocast(device, dtype)
    )

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with context:
            loss = compute(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return step


def forward_pass(
    config: BertConfig,
    batch: Mapping[str, torch.Tensor],
    dtype: torch.dtype,
    compiled: bool,
) -> Callable[[], Any]:
    """The encoder and its pooler; gives the vectors of both."""
    device = batch["input_ids"].device.type
    model = BertModel(config).to(device, dtype).eval()
    compute = torch.compile(model) if compiled else model
    inputs = {name: batch[name] for name in INPUTS & batch.keys()}

    def step() -> Mapping[str, torch.Tensor]:
        with torch.inference_mode():
            return compute(**inputs)

    return step


def wait(device: str) -> None:
    """Until all that was asked of a device is done; a CPU does it at once."""
    if device == ON_GPU:
        torch.cuda.synchronize()


def peak_bytes(device: str) -> int | None:
    return torch.cuda.max_memory_allocated() if device == ON_GPU else None


def random_batch(request: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Examples of random ids, a row each, padded to the longest that may be."""
    lengths = list(itertools.chain.from_iterable(request["rows"]))
    ends = torch.tensor(lengths)[:, None]
    shape = len(lengths), request["max_seq_length"]
    vocab_size = request["config"]["vocab_size"]
    share = request["max_predictions_per_seq"] / shape[1]
    labels = torch.full(shape, NOT_MASKED)
    for row, length in zip(labels, lengths, strict=True):
        places = torch.randperm(length)[: round(share * length)]
        row[places] = torch.randint(vocab_size, places.shape)
    mask = torch.arange(shape[1]) < ends
    return {
        "input_ids": torch.randint(vocab_size, shape),
        **({} if mask.all() else {"attention_mask": mask.long()}),
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
