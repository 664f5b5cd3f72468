"""Every model that Google published: its variables and number of weights.

The names, shapes and totals come from google-research/bert's checkpoints.
Variables take no memory, since their scope never initializes them.
"""

import functools
import math

import keras
import pytest

from bert_tf.config import BertConfig
from bert_tf.modeling.heads import BertClassifier, BertPretrainer
from bert_tf.modeling.variables import checkpoint_variables

UNCASED, CASED = 30522, 28996
CHINESE, MULTILINGUAL_CASED, MULTILINGUAL_UNCASED = 21128, 119547, 105879
# Size and vocabulary -> weights of the encoder, and with both heads.
PUBLISHED = {
    ("base", UNCASED): (109_482_240, 110_106_428),
    ("base", CASED): (108_310_272, 108_932_934),
    ("large", UNCASED): (335_141_888, 336_226_108),
    ("large", CASED): (333_579_264, 334_661_958),
    ("base", CHINESE): (102_267_648, None),
    ("base", MULTILINGUAL_CASED): (177_853_440, None),
    ("base", MULTILINGUAL_UNCASED): (167_356_416, None),
    ("tiny", UNCASED): (4_385_920, None),
    ("mini", UNCASED): (11_170_560, None),
    ("small", UNCASED): (28_763_648, None),
    ("medium", UNCASED): (41_373_184, None),
}
SMALL = [
    (f"L-{layers}_H-{width}", UNCASED)
    for layers in (2, 4, 6, 8, 10, 12)
    for width in (128, 256, 512, 768)
]
BY_DEFAULT = [("tiny", UNCASED), ("base", CHINESE), ("large", UNCASED)]


def dense(name, inputs, outputs):
    return {f"{name}/kernel": (inputs, outputs), f"{name}/bias": (outputs,)}


def layer_norm(name, width):
    return {f"{name}/LayerNorm/{part}": (width,) for part in ("gamma", "beta")}


def originals_variables(config: BertConfig) -> dict[str, tuple[int, ...]]:
    """Name -> shape, as in the released checkpoints."""
    width, inner = config.hidden_size, config.intermediate_size
    shapes = {
        "bert/embeddings/word_embeddings": (config.vocab_size, width),
        "bert/embeddings/token_type_embeddings": (2, width),
        "bert/embeddings/position_embeddings": (512, width),
        **layer_norm("bert/embeddings", width),
    }
    for index in range(config.num_hidden_layers):
        layer = f"bert/encoder/layer_{index}"
        for part in ("query", "key", "value"):
            shapes |= dense(f"{layer}/attention/self/{part}", width, width)
        shapes |= dense(f"{layer}/attention/output/dense", width, width)
        shapes |= layer_norm(f"{layer}/attention/output", width)
        shapes |= dense(f"{layer}/intermediate/dense", width, inner)
        shapes |= dense(f"{layer}/output/dense", inner, width)
        shapes |= layer_norm(f"{layer}/output", width)
    transform = "cls/predictions/transform"
    return shapes | {
        **dense("bert/pooler/dense", width, width),
        **dense(f"{transform}/dense", width, width),
        **layer_norm(transform, width),
        "cls/predictions/output_bias": (config.vocab_size,),
        "cls/seq_relationship/output_weights": (2, width),
        "cls/seq_relationship/output_bias": (2,),
    }


def shapes_of(make_model) -> dict[str, tuple[int, ...]]:
    """Name -> shape of a model's variables, without their memory."""
    with keras.StatelessScope(initialize_variables=False):
        model = make_model()
        model.build()
        variables = checkpoint_variables(model)
        shapes = {name: tuple(v.shape) for name, v in variables.items()}
    # Keras remembers variables without values and would make all of them, 13
    # GB, in the next model that it builds by shapes.
    keras.utils.clear_session()
    return shapes


def weights_in(shapes, prefix=""):
    return sum(math.prod(s) for n, s in shapes.items() if n.startswith(prefix))


@pytest.mark.parametrize(
    ("size", "vocab_size"),
    [
        pytest.param(*x, marks=() if x in BY_DEFAULT else pytest.mark.slow)
        for x in [*PUBLISHED, *SMALL]
    ],
)
def test_every_variable(fidelity, size, vocab_size):
    config = BertConfig.from_name(size, vocab_size)
    ours = shapes_of(lambda: BertPretrainer(config))
    theirs = originals_variables(config)
    fidelity(
        "model: names and shapes of all variables, every published size and "
        "vocabulary, the 24 small models too: those that differ",
        len(ours.items() ^ theirs.items()),
        0,
    )
    counts = config.num_parameters(), config.num_parameters(True)
    assert counts == (weights_in(theirs, "bert/"), weights_in(theirs))
    encoder, both = PUBLISHED.get((size, vocab_size), (None, None))
    if encoder:
        fidelity(
            "model: weights of the encoder, Base to Medium, Chinese and "
            "multilingual: difference from the published model, of 11",
            abs(weights_in(ours, "bert/") - encoder),
            0,
        )
    if both:
        fidelity(
            "model: weights with both heads, Base and Large, cased and "
            "uncased: difference from the published model, of 4",
            abs(weights_in(ours) - both),
            0,
        )


@pytest.mark.parametrize(
    ("what", "file", "make_model", "is_training"),
    [
        ("released", "bert_model", BertPretrainer, False),
        ("pre-trained", "pretraining/model", BertPretrainer, True),
        (
            "fine-tuned",
            "mrpc/model",
            functools.partial(BertClassifier, num_labels=2),
            True,
        ),
    ],
)
def test_bert_tiny_of_google(
    shared_data, fidelity, what, file, make_model, is_training
):
    """Names and shapes in files of Google and of its code."""
    tf = pytest.importorskip("tensorflow")
    config = BertConfig.from_name("tiny", UNCASED)
    ours = shapes_of(lambda: make_model(config))
    if is_training:
        slots = {
            f"{name}/adam_{slot}": shape
            for name, shape in ours.items()
            for slot in "mv"
        }
        ours |= slots | {"global_step": ()}
    (path,) = (shared_data / "google_bert_outputs").glob(f"{file}.ckpt*.index")
    reader = tf.train.load_checkpoint(str(path).removesuffix(".index"))
    theirs = {
        name: tuple(shape)
        for name, shape in reader.get_variable_to_shape_map().items()
    }
    fidelity(
        f"checkpoints: BERT-Tiny as Google's code {what} it, "
        f"{len(theirs)} tensors: names and shapes that differ",
        len(ours.items() ^ theirs.items()),
        0,
    )
