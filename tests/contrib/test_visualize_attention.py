"""visualize_attention.py from its command line to its files."""

import base64
import json
import re
import shutil
import subprocess
import sys
import zlib

import in_process
import numpy as np
import pytest
import small_release
from checkout import ROOT
from small_release import WORDS

from bert_tf.modeling import BertModel

LAYERS, HEADS, S = 3, 2, 13
PAIR = ["--text=A ab </script> c", "--text_b=d [MASK]"]
PIECES = "[CLS] a a ##b [UNK] [UNK] [UNK] [UNK] c [SEP] d [MASK] [SEP]"


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    return tmp_path_factory.mktemp("release")


@pytest.fixture(scope="module", autouse=True)
def model(release):
    def make(config):
        return BertModel(config, output_attentions=True)

    config = small_release.config_of(num_hidden_layers=LAYERS)
    return small_release.write(release, make, config)


@pytest.fixture(scope="module")
def launch():
    required = ["init_checkpoint", "text"]
    with in_process.script("visualize_attention", required) as launch:
        yield launch


def read(path):
    """Returns the facts and the weights of a page."""
    facts, weights = re.findall(
        r'<script type="[^"]+" id="\w+">(.*?)</script>', path.read_text()
    )
    facts = json.loads(facts)
    packed = zlib.decompress(base64.b64decode(weights))
    high, low = np.frombuffer(packed, np.uint8).reshape(2, -1).astype(int)
    size = len(facts["pieces"])
    weights = (high * 256 + low) / facts["levels"]
    return facts, weights.reshape(LAYERS, HEADS, size, size)


@pytest.mark.slow
def test_a_page(model, release, tmp_path):
    """As a program, it writes into the current folder."""
    script = [sys.executable, str(ROOT / "visualize_attention.py")]
    start = f"--init_checkpoint={release}/bert_model.ckpt"
    subprocess.run([*script, start, *PAIR], check=True, cwd=tmp_path)
    facts, weights = read(tmp_path / "attention.html")
    assert facts["pieces"] == PIECES.split()
    assert facts["model"] == f"{release.name}/bert_model.ckpt"
    ids = np.array([[WORDS.index(piece) for piece in facts["pieces"]]])
    segments = np.array([[0] * 10 + [1] * 3])
    outputs = model({"input_ids": ids, "segment_ids": segments})
    expected = np.stack([layer[0] for layer in outputs["attentions"]])
    np.testing.assert_allclose(weights, expected, atol=1e-5)


def test_pages_and_pictures(launch, release, tmp_path):
    def visualize(name, *words):
        path = tmp_path / "new" / name
        given = [f"--init_checkpoint={release}", f"--output={path}"]
        assert launch([*given, *words]) == 0
        return path

    facts, weights = read(visualize("page.html", "--text=b c"))
    start = {"layer": 0, "head": 0, "joined": True, "specials": True}
    assert facts["start"] == start
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-3)
    options = ["--layer=-1", "--head=1", "--nojoin_pieces"]
    # A text of the maximum length.
    text = f"--text={'a ' * (S - 2)}"
    facts, _ = read(visualize("x.HTM", text, *options, "--nospecial_tokens"))
    start = {"layer": 2, "head": 1, "joined": False, "specials": False}
    assert facts["start"] == start
    assert len(facts["pieces"]) == S
    pytest.importorskip("matplotlib")
    overview = visualize("all.png", *PAIR).read_bytes()
    one = visualize("1.PNG", *PAIR, "--layer=1", "--head=1").read_bytes()
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
        (["--output=BARE/bert_config.json/x.html"], "Cannot write"),
    ],
)
def test_an_error_is_one_line(
    launch, release, tmp_path, capsys, words, message
):
    bare = tmp_path / "bare"
    shutil.copytree(release, bare, ignore=shutil.ignore_patterns("vocab.txt"))
    given = [f"--init_checkpoint={release}", f"--output={tmp_path}/page.html"]
    words = [word.replace("BARE", str(bare)) for word in words]
    assert launch([*given, "--text=a", *words]) == 1
    assert message in in_process.the_error(capsys, "visualize_attention")
    assert [path.name for path in tmp_path.iterdir()] == ["bare"]
