"""extract_features.py from its command line to its files."""

import dataclasses
import json

import in_process
import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.heads import BertPretrainer
from bert_tf.interop import google, huggingface
from bert_tf.modeling import BertModel, checkpoint_variables
from bert_tf.pretrained import open_pretrained
from bert_tf.training import checkpoints

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", "##b"]
LAYERS, H, S = 5, 6, 13
CONFIG = BertConfig(
    vocab_size=len(WORDS),
    hidden_size=H,
    num_hidden_layers=LAYERS,
    num_attention_heads=2,
    intermediate_size=7,
    max_position_embeddings=S,
    type_vocab_size=2,
)
LINES = [
    "a b ||| c d e",
    "",
    "h",
    "a b c d e f g h a b c d e f g h",
    "A ab ? c",
    *("a " * n for n in range(9)),
    "c ||| d",
]
REQUIRED = ["init_checkpoint"]


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """Returns a release folder of a model with heads."""
    folder = tmp_path_factory.mktemp("release")
    keras.utils.set_random_seed(1)
    model = BertPretrainer(CONFIG)
    model.build()
    weights = {
        name: variable.numpy() * 5
        for name, variable in checkpoint_variables(model).items()
    }
    checkpoints.write(str(folder / "bert_model.ckpt"), weights)
    (folder / "bert_config.json").write_text(CONFIG.to_json_string())
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (folder / "input.txt").write_text("\n".join(LINES) + "\n")
    return folder


@pytest.fixture(scope="module")
def launch():
    with in_process.script("extract_features", REQUIRED) as launch:
        yield launch


@pytest.fixture
def extract(launch, release, tmp_path):
    """Runs the script and returns the path of the output."""

    def extract(name="output", status=0, **flags):
        values = {
            "input_file": release / "input.txt",
            "output_file": tmp_path / name,
            "init_checkpoint": release,
            "max_seq_length": S,
            "batch_size": 3,
        } | flags
        words = [f"--{k}={v}" for k, v in values.items() if v is not None]
        assert launch(words) == status
        return tmp_path / name

    return extract


def objects(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def tokens_of(line: str) -> list[str]:
    """Returns the tokens of one of `LINES`."""
    words = {"A": "a", "ab": "a ##b", "?": "[UNK]"}
    texts = [
        " ".join(words.get(word, word) for word in text.split()).split()
        for text in line.split(" ||| ")
    ]
    pieces = ["[CLS]", *texts[0][: S - 2], "[SEP]"]
    return [*pieces, *texts[1], "[SEP]"] if len(texts) > 1 else pieces


@pytest.fixture(scope="module")
def expected(release):
    """Returns tokens and hidden states of each line, computed alone."""
    model = BertModel(CONFIG, output_hidden_states=True)
    model.build()
    reader = checkpoints.Reader(str(release / "bert_model.ckpt"))
    for name, variable in checkpoint_variables(model).items():
        variable.assign(reader[name])
    result = []
    for line in LINES:
        tokens = tokens_of(line)
        first = tokens.index("[SEP]") + 1
        segments = [int(place >= first) for place in range(len(tokens))]
        outputs = model(
            {
                "input_ids": np.array([[WORDS.index(t) for t in tokens]]),
                "segment_ids": np.array([segments]),
            }
        )
        states = [state.numpy()[0] for state in outputs["hidden_states"]]
        result.append((tokens, states))
    return result


def assert_close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=3e-6)


def test_the_output_of_the_original(extract, expected):
    found = objects(extract())
    assert [line["linex_index"] for line in found] == list(range(len(LINES)))
    for line, (tokens, states) in zip(found, expected, strict=True):
        assert [entry["token"] for entry in line["features"]] == tokens
        for place, entry in enumerate(line["features"]):
            numbers = [layer["index"] for layer in entry["layers"]]
            assert numbers == [-1, -2, -3, -4]
            for layer in entry["layers"]:
                values = states[layer["index"]][place]
                assert_close(layer["values"], values)


def test_an_old_command_line(extract, release):
    old = {
        "layers": "-1,0",
        "bert_config_file": release / "bert_config.json",
        "vocab_file": release / "vocab.txt",
        "init_checkpoint": release / "bert_model.ckpt",
        "do_lower_case": True,
        "use_tpu": False,
        "master": "grpc://10.0.0.2:8470",
        "num_tpu_cores": 8,
        "use_one_hot_embeddings": False,
    }
    layers = objects(extract(**old))[0]["features"][0]["layers"]
    assert [layer["index"] for layer in layers] == [-1, 0]


def test_npz_of_layers_by_name(extract, expected):
    path = extract(
        "a.npz",
        output_format="npz",
        layers="embeddings,layer_1,sum_last_four,concat_last_four",
    )
    with np.load(path) as arrays:
        ids, offsets = arrays["input_ids"], arrays["offsets"]
        for line, (tokens, states) in enumerate(expected):
            rows = slice(*offsets[line : line + 2])
            assert [WORDS[n] for n in ids[rows]] == tokens
            for name, values in {
                "embeddings": states[0],
                "layer_1": states[2],
                "sum_last_four": np.sum(states[-4:], axis=0),
                "concat_last_four": np.concatenate(states[-4:], axis=1),
            }.items():
                assert_close(arrays[name][rows], values)


@pytest.mark.parametrize(
    ("pooling", "by_hand"), [("mean", np.mean), ("max", np.max)]
)
def test_pooled_vectors(extract, expected, pooling, by_hand):
    path = extract(output_format="npz", layers="-2", pooling=pooling)
    with np.load(path) as arrays:
        values = [by_hand(states[-2], axis=0) for _, states in expected]
        assert_close(arrays["-2"], values)


def test_left_to_right_models_have_no_cls_vector(extract, tmp_path, capsys):
    config = dataclasses.replace(CONFIG, attention_direction="left_to_right")
    path = tmp_path / "bert_config.json"
    path.write_text(config.to_json_string())
    extract(status=1, bert_config_file=path, pooling="cls")
    line = in_process.the_error(capsys, "extract_features")
    assert "whose [CLS] attends only to itself; got 'cls'" in line
    assert not (tmp_path / "output").exists()
    extract(bert_config_file=path, pooling="mean")


def test_the_formats_agree(extract):
    flags = {"layers": "last", "pooling": "cls"}
    lines = objects(extract("a", **flags))
    as_json = [line["layers"][0]["values"] for line in lines]
    with np.load(extract("b", output_format="npz", **flags)) as arrays:
        as_array = arrays["last"]
    path = extract("c", output_format="tfrecord", **flags)
    schema = {"last": tf.io.FixedLenFeature([H], tf.float32)}
    as_records = [
        tf.io.parse_single_example(record, schema)["last"].numpy()
        for record in tf.data.TFRecordDataset(str(path))
    ]
    np.testing.assert_array_equal(as_records, as_array)
    np.testing.assert_allclose(as_json, as_array, rtol=0, atol=5.1e-7)


@pytest.mark.slow
def test_several_devices(extract, expected):
    path = extract(
        output_format="npz", layers="-1", distribution_strategy="mirrored"
    )
    with np.load(path) as arrays:
        values = np.concatenate([states[-1] for _, states in expected])
        assert_close(arrays["-1"], values)


@pytest.mark.slow
def test_two_workers_write_one_file(layouts, release, expected, tmp_path):
    path = layouts.run(
        layouts.LAYOUTS["two_workers"],
        "extract_features.py",
        {
            "input_file": release / "input.txt",
            "init_checkpoint": release,
            "max_seq_length": S,
            "batch_size": 3,
            "output_format": "npz",
            "layers": "-1",
        },
        tmp_path / "run",
        output_flag="output_file",
    )
    with np.load(path) as arrays:
        values = np.concatenate([states[-1] for _, states in expected])
        assert_close(arrays["-1"], values)
    written = {path.name for path in path.parent.iterdir()}
    assert written == {"output", "worker0.log", "worker1.log"}


def test_few_texts_in_memory_give_the_same_vectors(extract, monkeypatch):
    """As few as possible, as for a large model."""
    flags = {"output_format": "npz", "layers": "-1", "pooling": "cls"}
    with np.load(extract("a", **flags)) as arrays:
        at_once = arrays["-1"]
    monkeypatch.setattr("bert_tf.tasks.features._BYTES_AT_A_TIME", 1)
    with np.load(extract("b", **flags)) as arrays:
        assert_close(arrays["-1"], at_once)


@pytest.mark.parametrize("write", [google.write, huggingface.write])
def test_checkpoints_record_their_casing(extract, release, tmp_path, write):
    folder = tmp_path / "cased"
    folder.mkdir()
    pretrained = open_pretrained(release)
    write(str(folder), dataclasses.replace(pretrained, do_lower_case=False))
    path = extract(init_checkpoint=folder, layers="-1")
    features = objects(path)[4]["features"]
    assert [entry["token"] for entry in features] == [
        *("[CLS]", "[UNK]", "a", "##b", "[UNK]", "c", "[SEP]")
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"layers": "5"}, "from -5 to 4"),
        ({"layers": "lats"}, "'lats'"),
        ({"max_seq_length": S + 1}, "--max_seq_length must be at most 13"),
        ({"input_file": "/nowhere/input.txt"}, "/nowhere/input.txt"),
        ({"input_file": "EMPTY"}, "there is no text"),
        ({"input_file": "LATIN1"}, "byte 0xe9"),
        ({"output_file": "SAME", "input_file": "SAME"}, "would overwrite"),
        ({"output_file": "/proc/no/output"}, "Cannot write /proc/no/output"),
        ({"init_checkpoint": "/nowhere"}, "/nowhere"),
        ({"vocab_file": "/no.txt"}, "/no.txt"),
        ({"do_lower_case": "false", "init_checkpoint": "NAMED"}, "is uncased"),
    ],
)
def test_errors_are_one_line(
    extract, release, tmp_path, capsys, flags, message
):
    (tmp_path / "EMPTY").touch()
    (tmp_path / "LATIN1").write_bytes(b"ok\ncaf\xe9\n")
    (tmp_path / "SAME").write_text("a")
    named = tmp_path / "uncased_model"
    named.mkdir()
    for path in release.iterdir():
        (named / path.name).write_bytes(path.read_bytes())
    places = {name: tmp_path / name for name in ("EMPTY", "LATIN1", "SAME")}
    places["NAMED"] = named
    flags = {k: places.get(v, v) for k, v in flags.items()}
    path = extract(status=1, **flags)
    assert message in in_process.the_error(capsys, "extract_features")
    assert not path.exists()
