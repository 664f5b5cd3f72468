"""Makes transformers_layout.json: what `save_pretrained` writes.

    /tmp/torch/bin/python tests/golden/make_transformers_layout.py

with an environment as in make_with_transformers.py. For each class: the shape
of every tensor in model.safetensors, and config.json.
"""

import json
import pathlib
import tempfile

import safetensors
import transformers

HERE = pathlib.Path(__file__).parent
CONFIG = {
    "vocab_size": 23,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 17,
    "max_position_embeddings": 19,
    "type_vocab_size": 2,
    "hidden_act": "gelu_new",
}
# The settings of each class beside those.
CLASSES = {
    "BertModel": {},
    "BertForPreTraining": {},
    "BertForMaskedLM": {},
    "BertForNextSentencePrediction": {},
    "BertForSequenceClassification": {"num_labels": 5},
    "BertForMultipleChoice": {},
    "BertForTokenClassification": {
        "id2label": {n: f"label {n}" for n in range(7)},
        "label2id": {f"label {n}": n for n in range(7)},
    },
    "BertForQuestionAnswering": {},
}


def layout(name: str, folder: pathlib.Path) -> dict:
    """Saves a model of one class and reads the files."""
    config = transformers.BertConfig(**CONFIG, **CLASSES[name])
    getattr(transformers, name)(config).save_pretrained(folder)
    with safetensors.safe_open(folder / "model.safetensors", "pt") as file:
        shapes = {
            tensor: "x".join(map(str, file.get_slice(tensor).get_shape()))
            for tensor in sorted(file.keys())
        }
    values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    del values["transformers_version"]
    return {"tensors": shapes, "config": values}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        layouts = {
            name: layout(name, pathlib.Path(folder, name)) for name in CLASSES
        }
    path = HERE / "transformers_layout.json"
    path.write_text(json.dumps(layouts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
