"""extract_features.py from its command line to its files."""

import dataclasses
import json

import in_process
import numpy as np
import pytest
import small_release
from small_release import WORDS

from bert_tf.checkpoints import tf1
from bert_tf.modeling.encoder import BertModel
from bert_tf.modeling.heads import BertPretrainer
from bert_tf.modeling.variables import checkpoint_variables

pytestmark = pytest.mark.usefixtures("eagerly")

SCRIPT_NAME = "extract_features"
LAYERS, H, S = 4, 6, 13
CONFIG = small_release.config_of(num_hidden_layers=LAYERS)
# Each line with its tokens; None where they are the words.
TOKENS = {
    "a b ||| c d e": "a b [SEP] c d e",
    "": None,
    "h": None,
    "a b c d e f g h a b c d e f g h": "a b c d e f g h a b c",
    "A ab ? c": "a a ##b [UNK] c",
    **{"a " * n: None for n in range(2, 9)},
    "c ||| d": "c [SEP] d",
}
FLAGS = {"max_seq_length": S, "batch_size": 7}


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    folder = tmp_path_factory.mktemp("release")
    small_release.write(folder, BertPretrainer, CONFIG)
    (folder / "input.txt").write_text("\n".join(TOKENS) + "\n")
    return folder


@pytest.fixture
def extract(launch, release, tmp_path):
    """Runs the script and returns the path of the output."""

    def extract(name="output", status=0, **flags):
        values = {
            "input_file": release / "input.txt",
            "output_file": tmp_path / name,
            "init_checkpoint": release,
            **FLAGS,
            **flags,
        }
        assert launch([f"--{k}={v}" for k, v in values.items()]) == status
        return tmp_path / name

    return extract


@pytest.fixture
def arrays(extract):
    """Returns the arrays that the script writes."""

    def arrays(**flags):
        with np.load(extract(output_format="npz", **flags)) as found:
            return dict(found)

    return arrays


def objects(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def expected(release):
    """Returns tokens and hidden states of each line, computed alone."""

    model = BertModel(CONFIG, output_hidden_states=True)
    model.build()
    reader = tf1.Reader(str(release / "bert_model.ckpt"))
    for name, variable in checkpoint_variables(model).items():
        variable.assign(reader[name])
    result = []
    for line, tokens in TOKENS.items():
        words = line if tokens is None else tokens
        tokens = ["[CLS]", *words.split(), "[SEP]"]
        first = tokens.index("[SEP]") + 1
        outputs = model(
            {
                "input_ids": np.array([[WORDS.index(t) for t in tokens]]),
                "segment_ids": np.arange(len(tokens))[np.newaxis] >= first,
            }
        )
        states = [state.numpy()[0] for state in outputs["hidden_states"]]
        result.append((tokens, states))
    return result


def assert_close(found, expected):
    # Sums of several layers can be near 0 where the layers are not.
    atol = max(3e-6, 3e-7 * np.abs(expected).max())
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=atol)


def test_the_output_of_the_original(extract, expected):
    found = objects(extract())
    assert [line["linex_index"] for line in found] == [*range(len(TOKENS))]
    for line, (tokens, states) in zip(found, expected, strict=True):
        assert [entry["token"] for entry in line["features"]] == tokens
        for position, entry in enumerate(line["features"]):
            numbers = [layer["index"] for layer in entry["layers"]]
            assert numbers == [-1, -2, -3, -4]
            for layer in entry["layers"]:
                values = states[layer["index"]][position]
                assert_close(layer["values"], values)


@pytest.mark.slow
def test_a_model_of_three_layers(extract, tmp_path):
    config = small_release.config_of(num_hidden_layers=3)
    small_release.write(tmp_path, BertPretrainer, config)
    [first, *_] = objects(extract(init_checkpoint=tmp_path))
    layers = first["features"][0]["layers"]
    assert [layer["index"] for layer in layers] == [-1, -2, -3]
    extract(init_checkpoint=tmp_path, layers="-1,-2,-3,-4", status=1)


@pytest.mark.graph
def test_an_old_command_line(extract, release):
    path = extract(
        layers="-1,0",
        bert_config_file=release / "bert_config.json",
        vocab_file=release / "vocab.txt",
        init_checkpoint=release / "bert_model.ckpt",
        do_lower_case=True,
        use_tpu=False,
        master="grpc://10.0.0.2:8470",
        num_tpu_cores=8,
        use_one_hot_embeddings=False,
    )
    layers = objects(path)[0]["features"][0]["layers"]
    assert [layer["index"] for layer in layers] == [-1, 0]


def test_npz_of_layers_by_name(arrays, expected):
    found = arrays(layers="embeddings,layer_1,sum_last_four,concat_last_four")
    ids, offsets = found["input_ids"], found["offsets"]
    for line, (tokens, states) in enumerate(expected):
        rows = slice(*offsets[line : line + 2])
        assert [WORDS[n] for n in ids[rows]] == tokens
        for name, values in {
            "embeddings": states[0],
            "layer_1": states[2],
            "sum_last_four": np.sum(states[-4:], axis=0),
            "concat_last_four": np.concatenate(states[-4:], axis=1),
        }.items():
            assert_close(found[name][rows], values)


# tests/kinds/test_text_features.py has all poolings.
def test_pooled_vectors(arrays, expected):
    found = arrays(layers="-2", pooling="mean")["-2"]
    assert_close(found, [states[-2].mean(axis=0) for _, states in expected])


def test_left_to_right_models_have_no_cls_vector(extract, write, capsys):
    config = dataclasses.replace(CONFIG, attention_direction="left_to_right")
    file = write(config.to_json_string(), "bert_config.json")
    path = extract(status=1, bert_config_file=file, pooling="cls")
    line = in_process.the_error(capsys, "extract_features")
    assert "whose [CLS] attends only to itself; got 'cls'" in line
    assert not path.exists()


@pytest.mark.slow
def test_several_devices(arrays, expected):
    found = arrays(layers="-1", distribution_strategy="mirrored")["-1"]
    assert_close(found, np.concatenate([states[-1] for _, states in expected]))


@pytest.mark.slow
def test_two_workers_write_one_file(layouts, release, expected, tmp_path):
    path = layouts.run(
        layouts.LAYOUTS["two_workers"],
        "extract_features.py",
        {
            "input_file": release / "input.txt",
            "init_checkpoint": release,
            "output_format": "npz",
            "layers": "-1",
            **FLAGS,
        },
        tmp_path / "run",
        output_flag="output_file",
    )
    values = np.concatenate([states[-1] for _, states in expected])
    with np.load(path) as found:
        assert_close(found["-1"], values)
    written = {path.name for path in path.parent.iterdir()}
    assert written == {"output", "worker0.log", "worker1.log"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"layers": "5"}, "from -4 to 3"),
        ({"max_seq_length": S + 1}, "--max_seq_length must be at most 13"),
        (
            {"doc_stride": 2},
            "must be mean or max with --doc_stride; got 'none'",
        ),
        ({"input_file": "EMPTY"}, "there is no text"),
        ({"input_file": "LATIN1"}, "byte 0xe9"),
        ({"output_file": "SAME", "input_file": "SAME"}, "would overwrite"),
        ({"output_file": "/proc/no/output"}, "Cannot write /proc/no/output"),
    ],
)
def test_errors_are_one_line(extract, tmp_path, capsys, flags, message):
    (tmp_path / "EMPTY").touch()
    (tmp_path / "LATIN1").write_bytes(b"ok\ncaf\xe9\n")
    (tmp_path / "SAME").write_text("a")
    for name, value in flags.items():
        if name.endswith("_file"):
            flags = {**flags, name: tmp_path / value}
    path = extract(status=1, **flags)
    assert message in in_process.the_error(capsys, "extract_features")
    assert not path.exists()
