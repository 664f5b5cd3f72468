"""visualize_attention.py as its users run it, with a tiny model."""

import base64
import json
import re
import subprocess
import sys
import zlib

import in_process
import keras
import numpy as np
import pytest
from checkout import ROOT

from bert_tf.config import BertConfig
from bert_tf.modeling import BertModel, checkpoint_variables
from bert_tf.training import checkpoints

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", "##b"]
LAYERS, HEADS, S = 3, 2, 13
CONFIG = BertConfig(
    vocab_size=len(WORDS),
    hidden_size=6,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    intermediate_size=7,
    max_position_embeddings=S,
    type_vocab_size=2,
)
PAIR = ["--text=A ab </script> c", "--text_b=d [MASK]"]
PIECES = "[CLS] a a ##b [UNK] [UNK] [UNK] [UNK] c [SEP] d [MASK] [SEP]"


@pytest.fixture(scope="module")
def model():
    """Weights large enough for heads that differ."""
    keras.utils.set_random_seed(1)
    model = BertModel(CONFIG, output_attentions=True)
    model.build()
    for variable in checkpoint_variables(model).values():
        variable.assign(variable.numpy() * 9)
    return model


@pytest.fixture(scope="module")
def release(model, tmp_path_factory):
    """Its folder."""
    folder = tmp_path_factory.mktemp("release")
    weights = {k: v.numpy() for k, v in checkpoint_variables(model).items()}
    checkpoints.write(str(folder / "bert_model.ckpt"), weights)
    (folder / "bert_config.json").write_text(CONFIG.to_json_string())
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return folder


@pytest.fixture(scope="module")
def launch():
    required = ["init_checkpoint", "text"]
    with in_process.script("visualize_attention", required) as launch:
        yield launch


def read(path) -> tuple[dict, np.ndarray]:
    """The facts and the weights of a page."""
    facts, weights = re.findall(
        r'<script type="[^"]+" id="\w+">(.*?)</script>', path.read_text()
    )
    facts = json.loads(facts)
    packed = zlib.decompress(base64.b64decode(weights))
    high, low = np.frombuffer(packed, np.uint8).reshape(2, -1).astype(int)
    size = len(facts["pieces"])
    shape = (facts["layers"], facts["heads"], size, size)
    return facts, ((high * 256 + low) / facts["levels"]).reshape(shape)


def test_a_page(model, release, tmp_path):
    """Once as it is run; into the folder where it is run."""
    done = subprocess.run(
        [
            *(sys.executable, str(ROOT / "visualize_attention.py")),
            *(f"--init_checkpoint={release}/bert_model.ckpt", *PAIR),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    facts, weights = read(tmp_path / "attention.html")
    assert facts["pieces"] == PIECES.split()
    assert facts["model"] == f"{release.name}/bert_model.ckpt"
    outputs = model(
        {
            "input_ids": np.array([[WORDS.index(p) for p in facts["pieces"]]]),
            "segment_ids": np.array([[0] * 10 + [1] * 3]),
        }
    )
    expected = np.stack([layer[0] for layer in outputs["attentions"]])
    np.testing.assert_allclose(weights, expected, atol=1e-5)


@pytest.fixture
def visualize(launch, release, tmp_path):
    """Runs the script and gives the path of what it wrote."""

    def visualize(*words, name="new/page.html"):
        given = [f"--init_checkpoint={release}", f"--output={tmp_path / name}"]
        assert launch([*given, *words]) == 0
        return tmp_path / name

    return visualize


def test_one_text_and_the_first_head(visualize):
    facts, weights = read(visualize("--text=b c"))
    assert facts["directions"] == ["ltr"]
    assert weights.shape == (LAYERS, HEADS, 4, 4)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-3)
    start = {"layer": 0, "head": 0, "joined": True, "specials": True}
    assert facts["start"] == start
    path = visualize(
        *("--text=b", "--layer=-1", "--head=1"),
        *("--nojoin_pieces", "--nospecial_tokens"),
        name="x.HTM",
    )
    start = {"layer": 2, "head": 1, "joined": False, "specials": False}
    assert read(path)[0]["start"] == start


def test_a_text_of_the_maximum_length(visualize):
    facts, _ = read(visualize(f"--text={'a ' * (S - 2)}"))
    assert len(facts["pieces"]) == S


def test_a_picture(visualize):
    pytest.importorskip("matplotlib")
    overview = visualize(*PAIR, name="all.png").read_bytes()
    one = visualize(*PAIR, "--layer=1", "--head=1", name="1.PNG").read_bytes()
    assert overview[:8] == one[:8] == b"\x89PNG\r\n\x1a\n"
    assert overview != one


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--output=x.pdf"], ".html, .htm or .png; got 'x.pdf'"),
        (["--output=x"], "got 'x'"),
        (["--layer=3"], "--layer must be from 0 to 2, or from -3 to -1"),
        (["--head=-3"], "--head must be from 0 to 1, or from -2 to -1"),
        ([f"--text={'a ' * S}"], f"max_position_embeddings is {S}"),
        (["--text= "], "at least one word"),
        (["--text_b="], "at least one word"),
        (["--init_checkpoint=/nowhere"], "/nowhere"),
        (["--init_checkpoint=BARE"], "--vocab_file"),
        (["--output=OUT/vocab.txt/x.html"], "Cannot write"),
    ],
)
def test_a_mistake_is_one_line(
    launch, release, tmp_path, capsys, words, message
):
    bare = tmp_path / "bare"
    bare.mkdir()
    for path in release.iterdir():
        if path.name != "vocab.txt":
            (bare / path.name).write_bytes(path.read_bytes())
    given = [
        f"--init_checkpoint={release}",
        "--text=a",
        f"--output={tmp_path}/page.html",
    ]
    words = [w.replace("BARE", str(bare)) for w in words]
    words = [w.replace("OUT", str(release)) for w in words]
    assert launch([*given, *words]) == 1
    assert message in in_process.the_error(capsys, "visualize_attention")
    assert [path.name for path in tmp_path.iterdir()] == ["bare"]
