"""A JSON object in pieces: byte for byte what json.dumps makes of the whole."""

import json
import math

import pytest

from bert_tf.tasks.answers import JsonObjectWriter

OBJECTS = [
    {},
    {"": ""},
    {"56be4db0acb8001400a502ec": "Denver Broncos"},
    {"a": {}, "b": [], "c": [[]], "d": None, "e": True, "f": -0.0},
    {"}": "{", "\n}": "{\n", "{": "\n}\n", '"': "\\"},
    {"é": "김치 \u2028 🤗", "half": "\ud83e", "tab": "\t\x00\x7f"},
    {"x": 0.1, "y": 1e-320, "z": 1e6, "n": 10**30},
    {
        str(number): [
            {"text": "one\ntwo", "probability": 1 / 3, "start_logit": number}
        ]
        * number
        for number in range(5)
    },
]


def write(path, members):
    with JsonObjectWriter(str(path)) as writer:
        for key, value in members.items():
            writer.add(key, value)


@pytest.mark.parametrize("members", OBJECTS)
def test_the_bytes_are_those_of_the_whole(tmp_path, members):
    path = tmp_path / "sub" / "object.json"
    write(path, members)
    text = path.read_bytes().decode("ascii")
    assert text == json.dumps(members, indent=4) + "\n"
    assert [file.name for file in path.parent.iterdir()] == ["object.json"]


@pytest.mark.parametrize("value", [math.nan, math.inf, [{"a": -math.inf}]])
def test_what_json_cannot_spell_is_an_error(tmp_path, value):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write(tmp_path / "object.json", {"good": 1.0, "bad": value})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_a_file_that_is_there_stays_if_the_next_fails(tmp_path, failure):
    path = tmp_path / "object.json"
    write(path, {"old": 1})
    before = path.read_bytes()

    class Members(dict):
        def items(self):
            yield "new", 2
            raise failure

    with pytest.raises(failure):
        write(path, Members())
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["object.json"]


def test_members_are_on_their_way_at_once(tmp_path):
    """What has been added is in the file or its buffer, and nowhere else."""
    with JsonObjectWriter(str(tmp_path / "object.json")) as writer:
        writer.add("long", "x" * 100_000)
        [file] = tmp_path.iterdir()
        assert file.name != "object.json"
        assert file.stat().st_size > 90_000
