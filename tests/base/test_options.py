"""Options are checked, converted and completed."""

import dataclasses
import pathlib

import numpy as np
import pytest

from bert_tf.base.options import OptionError, Options, named, option, required
from bert_tf.errors import InputError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    path: str = option("A file.", per_worker=True)
    labels: tuple[str, ...] | None = option("Labels.", default=None)
    rate: float = option("A rate.", default=0.1, at_least=0.0, at_most=1.0)
    share: float = option("A share.", default=0.5, at_least=0, below=1)
    steps: int = option("Steps.", default=7, at_least=1)
    length: int = option("A length.", fallback=128, at_most=512)
    is_cased: bool | None = option("Casing.", default=None)
    kind: str = option("A kind.", default="a", choices=("a", "b"))
    size: int = option("A size.", fallback=3, needs="kind=b")
    depth: int = option("A depth.", default=2, needs="labels")
    speed: int = option("A speed.", default=1, needs="of_another_job")


def test_values_are_converted():
    path = pathlib.Path("x") / "y"
    config = Config(path=path, labels=["a", 1], rate=1, steps=np.int64(3))
    assert (config.path, config.labels) == ("x/y", ("a", "1"))
    assert (config.rate, type(config.rate)) == (1.0, float)
    assert (config.steps, type(config.steps)) == (3, int)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rate": 1.5}, "`rate` must be at most 1.0; got 1.5"),
        ({"share": 1.0}, "`share` must be below 1; got 1.0"),
        ({"share": -0.1}, "`share` must be at least 0; got -0.1"),
        ({"share": float("nan")}, "`share` must be a finite number; got nan"),
        ({"steps": 0}, "`steps` must be at least 1; got 0"),
        ({"steps": True}, "`steps` must be an integer; got True"),
        ({"labels": "a,b"}, "`labels` must be a list of strings; got 'a,b'"),
        ({"is_cased": 1}, "`is_cased` must be true or false; got 1"),
        ({"kind": "c"}, "`kind` must be one of a or b; got 'c'"),
        ({"path": None}, "`path` must be a string; got None"),
    ],
)
def test_invalid_values_are_rejected(values, message):
    with pytest.raises(OptionError) as error:
        Config(**{"path": "x", **values})
    assert str(error.value).startswith(message)


def test_a_fallback_waits_until_it_is_needed():
    config = Config(path="x")
    assert config.length is None
    assert config.with_fallbacks().length == 128
    assert Config(path="x", length=5).with_fallbacks().length == 5


def test_workers_share_the_other_options():
    shared = Config(path="x").shared()
    assert {*Config.__dataclass_fields__} - {n.strip("`") for n in shared} == {
        "path"
    }


def test_options_are_found_by_their_declaration():
    assert named(Config, per_worker=True) == ["path"]
    assert named(Config, fallback=None, needs="labels") == ["depth"]


@pytest.mark.parametrize(
    ("values", "other", "message"),
    [
        ({"size": 3}, "kind", "`size` has no effect with `kind=a`. Leave it"),
        ({"depth": 3}, "labels", "no effect without `labels`. Leave it out, o"),
    ],
)
def test_options_without_effect_are_errors(values, other, message):
    with pytest.raises(InputError, match=message):
        Config(path="x", **values).require_effect(other)
    for values, other in (
        ({"size": 3, "kind": "b"}, "kind"),
        ({"depth": 3}, "kind"),
        ({"depth": 2}, "labels"),
        ({"speed": 2}, "of_another_job"),
    ):
        Config(path="x", **values).require_effect(other)


def test_an_option_without_a_default_is_required():
    assert required(Config) == ["path"]
    with pytest.raises(TypeError, match="path"):
        Config()
