import re
import shlex
import subprocess

import pytest

from bert_tf.interop import checkpoint


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([], None),
        (["config.json", "vocab.txt", "model.safetensors"], None),
        (["bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-1"], None),
        (["optimizer.pt", "pytorch_model.bin", "a.bin"], "pytorch_model.bin"),
        (["tf_model.h5", "flax_model.msgpack"], "tf_model.h5"),
        (["flax_model.msgpack", "config.json"], "flax_model.msgpack"),
        (["b.pt", "a.ckpt"], "a.ckpt"),
        (["pytorch_model.bin.index.json", "b-1-of-1.bin"], "b-1-of-1.bin"),
    ],
)
def test_finds_the_file_that_matters(names, found):
    assert checkpoint.find_unsupported(names) == found


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("pytorch_model.bin", "run what its author wrote"),
        ("model.pt", "run what its author wrote"),
        ("model.ckpt", "run what its author wrote"),
        ("tf_model.h5", "for TensorFlow"),
        ("flax_model.msgpack", "for Flax"),
    ],
)
def test_refuses_with_reason_and_remedy(name, reason):
    """tests/backends/test_transformers.py runs the remedy for pickles."""
    message = str(checkpoint.unsupported_format(f"some folder/{name}"))
    assert "\n" not in message
    assert message.startswith("expected model.safetensors in some folder. ")
    assert f"Received: {name}, which is " in message
    assert reason in message
    [command] = re.findall("python -c .*$", message)
    _, _, code, *arguments = shlex.split(command)
    compile(code, "remedy", "exec")
    assert arguments[0].startswith("some folder")


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "tf_model.h5", "flax_model.msgpack"]
)
def test_the_command_does_not_run_what_a_path_says(tmp_path, name):
    """The shell and Python pass it on as it is, whatever is in it."""
    folder = f"{tmp_path}/$(touch a)`touch b`\"';touch c;'\\"
    path = f"{folder}/{name.replace('.', '$(touch d).')}"
    message = str(checkpoint.unsupported_format(path, "owner/name"))
    [_, command] = message.split(" environment with ", 1)[1].split(": ", 1)
    # Stand-ins for the programs print their arguments.
    shell = 'hf() { printf "%s\\n" "$@"; }; python() { hf "$@"; }; ' + command
    done = subprocess.run(
        ["sh", "-c", shell], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())
    hub, _, (code, *arguments) = _split(done.stdout.splitlines(), "-c")
    assert hub == ["download", "owner/name", "--local-dir", folder]
    assert str(tmp_path) not in code
    assert arguments[0] == (path if name.endswith(".bin") else folder)


def _split(words, word):
    place = words.index(word)
    return words[:place], word, words[place + 1 :]


@pytest.mark.parametrize("begins", [b"\x80\x02}q\x00.", b"PK\x03\x04", None])
def test_looks_at_what_is_called_a_pickle(tmp_path, begins):
    path = tmp_path / "model.ckpt"
    if begins:
        path.write_bytes(begins)
    assert "which is a pickle" in str(checkpoint.unsupported_format(str(path)))


@pytest.mark.parametrize("content", [b"", b"model_checkpoint_path: 7", b"\0P"])
@pytest.mark.parametrize("name", ["model.ckpt", "pytorch_model.bin"])
def test_does_not_call_everything_a_pickle(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    message = str(checkpoint.unsupported_format(str(path)))
    assert "\n" not in message
    assert "pickle" not in message
    assert f"Received: {path}, which is neither" in message


def test_does_not_know_every_hdf5_file(tmp_path):
    message = str(checkpoint.unsupported_format("folder/weights.h5"))
    assert "\n" not in message
    assert "folder/weights.h5, which is an HDF5 file" in message
    assert "transformers" not in message
    shard = "folder/tf_model-00001-of-00002.h5"
    assert "transformers" in str(checkpoint.unsupported_format(shard))
