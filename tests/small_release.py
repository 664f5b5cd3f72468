"""A release folder with a random model. Not a test."""

import keras

from bert_tf.checkpoints import tf1 as checkpoints
from bert_tf.config import BertConfig
from bert_tf.modeling.variables import checkpoint_variables

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", "##b"]


def config_of(words=WORDS, **options):
    sizes = {
        "vocab_size": len(words),
        "hidden_size": 6,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 7,
        "max_position_embeddings": 13,
        "type_vocab_size": 2,
    }
    return BertConfig(**{**sizes, **options})


def write(folder, make, config, words=WORDS):
    """Writes and returns a model with weights so large that outputs differ."""
    keras.utils.set_random_seed(1)
    model = make(config)
    model.build()
    weights = {}
    for name, variable in checkpoint_variables(model).items():
        variable.assign(variable.numpy() * 9)
        weights[name] = variable.numpy()
    checkpoints.write(str(folder / "bert_model.ckpt"), weights)
    (folder / "bert_config.json").write_text(config.to_json_string())
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    return model
