"""The variables of a model by their names in checkpoints."""

import keras

from bert_tf.config import BertConfig
from bert_tf.errors import InputError

# The path suffix of every encoder's first variable.
_FIRST_VARIABLE = "/embeddings/word_embeddings"


def checkpoint_variables(model: keras.Model) -> dict[str, keras.Variable]:
    """Returns the weights of a built model by their names in a TF1 checkpoint.

    The encoder is called `bert`, whatever its name and its depth in the model.
    Everything before it in a path, such as the name of a subclassed
    `keras.Model`, is left out. The weights are in creation order.

    Raises:
      InputError: If there are several encoders, or the model is quantized.
    """
    if any(v.dtype == "int8" for v in model.weights):
        raise InputError(
            f"{model.name} is quantized to int8, which checkpoints cannot "
            "hold. Load or convert its weights before you call quantize."
        )
    paths = [v.path for v in model.weights]
    firsts = [p for p in paths if f"/{p}".endswith(_FIRST_VARIABLE)]
    if len(firsts) > 1:
        raise InputError(
            f"{model.name!r} has {len(firsts)} encoders. Load or convert them "
            "one by one."
        )
    outer, encoder = f"{model.name}/", None
    if firsts:
        encoder = firsts[0].removesuffix(_FIRST_VARIABLE)
        outer = encoder[: encoder.rfind("/") + 1]

    def name_of(path: str) -> str:
        if encoder is not None and path.startswith(f"{encoder}/"):
            return f"bert/{path[len(encoder) + 1 :]}"
        return path.removeprefix(outer)

    return {name_of(v.path): v for v in model.weights}


def encoder_config(model: keras.Model) -> BertConfig | None:
    """Returns the config of the encoder in a model, or None.

    Searches nested models, but not inside other layers.
    """
    config = getattr(model, "config", None)
    if isinstance(config, BertConfig):
        return config
    inner = (layer for layer in model.layers if isinstance(layer, keras.Model))
    return next(filter(None, map(encoder_config, inner)), None)
