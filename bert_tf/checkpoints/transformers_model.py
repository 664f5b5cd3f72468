"""Runs a model of the library transformers: a program of its own.

`python transformers_model.py FOLDER CLASS FILE` replaces the features in an
.npz file by the outputs. PyTorch's triton crashes in a process that has
imported TensorFlow, so this module imports neither bert_tf nor Keras.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np


def outputs(
    folder: str, class_name: str, features: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Returns the outputs of the model in a Hugging Face folder.

    Args:
      folder: The folder.
      class_name: The name of a class of transformers.
      features: `input_ids`, `input_mask` and `segment_ids`.
    """
    import torch
    import transformers

    model = getattr(transformers, class_name).from_pretrained(
        folder,
        local_files_only=True,
        use_safetensors=True,
        # A config.json may ask for half precision.
        dtype=torch.float32,
    )
    tensors = {n: torch.from_numpy(x).long() for n, x in features.items()}
    with torch.no_grad():
        found = model.eval()(
            input_ids=tensors["input_ids"],
            attention_mask=tensors["input_mask"],
            token_type_ids=tensors["segment_ids"],
        )
    return {n: x.numpy() for n, x in found.items() if torch.is_tensor(x)}


if __name__ == "__main__":
    # Version 4 imports TensorFlow where it is installed.
    os.environ["USE_TF"] = "0"
    model_folder, name_of_class, path = sys.argv[1:]
    with np.load(path) as arrays:
        result = outputs(model_folder, name_of_class, dict(arrays))
    np.savez(path, **result)
