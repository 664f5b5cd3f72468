"""Small Hugging Face folders."""

import json

from safetensors.numpy import save_file

from bert_tf.interop.huggingface import to_json
from bert_tf.interop.huggingface_weights import to_rows
from tests.interop.small_models import CONFIG, arrays


def their_tensors(head="pretraining", config=CONFIG):
    """The tensors of Hugging Face's class for this head."""
    weights = arrays(head, config)
    return {
        row.their_name(head): value
        for row, value in to_rows(weights, config, head).items()
    }


def config_dict(head="pretraining", config=CONFIG, **changes):
    """The contents of config.json; None removes a key."""
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
    """Writes tensors as shards with an index."""
    names = sorted(tensors)
    home = {}
    for n in range(count):
        shard = f"model-{n + 1:05}-of-{count:05}.safetensors"
        kept = {name: tensors[name] for name in names[n::count]}
        save_file(kept, folder / shard)
        home |= dict.fromkeys(kept, shard)
    index = {"metadata": {"total_size": 1}, "weight_map": home}
    write_json(folder, "model.safetensors.index.json", index)
