import os
import re

import pytest

from bert_tf.corpus.settings import CreationConfig
from bert_tf.corpus.text import TextFormat
from bert_tf.errors import InputError


def make_config(**settings):
    files = {"input_file": "a", "output_file": "b", "vocab_file": "c"}
    return CreationConfig(**{**files, **settings})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_seq_length": 4}, "5 or more.*--max_seq_length=4"),
        ({"max_predictions_per_seq": 0}, "1 or more.*predictions_per_seq=0"),
        ({"dupe_factor": 0}, "--dupe_factor=0"),
        ({"random_seed": -1}, "--random_seed=-1"),
        ({"masked_lm_prob": 0.0}, "above 0.*--masked_lm_prob=0.0"),
        ({"masked_lm_prob": 1.01}, "at most 1.*--masked_lm_prob=1.01"),
        ({"short_seq_prob": -0.1}, "--short_seq_prob=-0.1"),
        (
            {"errors": "drop"},
            "--errors must be one of strict, replace, ignore; got 'drop'",
        ),
        (
            {"input_format": "json"},
            "--input_format must be one of text, jsonl; got 'json'",
        ),
        ({"mask_share": 0.9}, "make 1 together.*--mask_share=0.9"),
        ({"mask_share": 1.2, "keep_share": -0.3}, "--keep_share=-0.3"),
    ],
)
def test_settings_that_cannot_be_used(settings, message):
    with pytest.raises(InputError, match=message):
        make_config(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_seq_length": 5},
        {"masked_lm_prob": 1.0},
        {"short_seq_prob": 0.0},
        {"mask_share": 0.1, "random_share": 0.2, "keep_share": 0.7},
        {"mask_share": 1.0, "random_share": 0.0, "keep_share": 0.0},
    ],
)
def test_settings_at_the_limits(settings):
    config = make_config(**settings)
    assert settings.items() <= config.settings().items()


def test_rules_hold_the_settings():
    config = make_config(
        max_seq_length=31,
        max_predictions_per_seq=7,
        masked_lm_prob=0.3,
        short_seq_prob=0.2,
        next_sentence=False,
        do_whole_word_mask=True,
        mask_share=0.5,
        random_share=0.3,
        keep_share=0.2,
    )
    rule = config.instance_rule
    assert rule.room == 29
    assert rule.short_seq_prob == 0.2
    assert make_config(max_seq_length=31).instance_rule.room == 28
    rule = config.masking_rule
    assert (rule.max_predictions_per_seq, rule.masked_lm_prob) == (7, 0.3)
    assert (rule.mask_share, rule.random_share) == (0.5, 0.3)
    assert rule.whole_words
    shapes = {feature.name: feature.shape for feature in config.schema}
    assert shapes["input_ids"] == (31,)
    assert shapes["masked_lm_ids"] == (7,)
    assert "vocab_file" not in config.settings()


def test_the_format_of_the_text():
    assert make_config(errors="ignore").text_format == TextFormat("ignore")
    config = make_config(input_format="jsonl", jsonl_field="body")
    assert config.text_format == TextFormat("strict", "body")


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("a", "the output a, which is the text a as well"),
        ("x,./c", "the output ./c, which is the vocabulary c as well"),
        ("x,y, ./x", "the output ./x, which is the output x as well"),
        (
            "q/x,q/manifest.x.json",
            "the manifest q/manifest.x.json, which is the output",
        ),
    ],
)
def test_outputs_are_files_of_their_own(output, message):
    with pytest.raises(InputError, match=re.escape(message)):
        make_config(output_file=output).output_paths(["a"])


def test_output_paths():
    with pytest.raises(InputError, match="files to write"):
        make_config(output_file=" , ").output_paths([])
    assert make_config(output_file="x, y,").output_paths([]) == ["x", "y"]


def test_output_paths_are_not_pipes(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match=f"{tmp_path}/pipe is a device or a"):
        make_config(output_file=f"x,{tmp_path}/pipe").output_paths([])
