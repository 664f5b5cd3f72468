"""Small Hugging Face folders to read; no test by itself."""

import json

from safetensors.numpy import save_file

from bert_tf.interop.huggingface import to_json
from bert_tf.interop.huggingface_weights import from_ours
from tests.interop.small_models import CONFIG, arrays


def their_tensors(head="pretraining", config=CONFIG):
    """What a file of Hugging Face's class for this head holds."""
    weights = arrays(head, config)
    return {
        row.their_name(head): value
        for row, value in from_ours(weights, config, head).items()
    }


def config_dict(head="pretraining", config=CONFIG, **changes):
    """What config.json holds; None takes a key away."""
    values = json.loads(to_json(config, head)) | changes
    return {k: v for k, v in values.items() if v is not None}


def write_json(folder, name, values):
    (folder / name).write_text(json.dumps(values), encoding="utf-8")


def write_folder(folder, tensors=None, config=None, head="pretraining"):
    """Writes config.json and model.safetensors; returns the path."""
    folder.mkdir(exist_ok=True)
    write_json(folder, "config.json", config or config_dict(head))
    tensors = their_tensors(head) if tensors is None else tensors
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return str(folder)


def write_shards(folder, tensors, count=3):
    """Deals tensors to shards, beside an index."""
    names = sorted(tensors)
    home = {}
    for n in range(count):
        shard = f"model-{n + 1:05}-of-{count:05}.safetensors"
        kept = {name: tensors[name] for name in names[n::count]}
        save_file(kept, folder / shard)
        home |= dict.fromkeys(kept, shard)
    index = {"metadata": {"total_size": 1}, "weight_map": home}
    write_json(folder, "model.safetensors.index.json", index)
