import dataclasses
import functools

import numpy as np
import pytest

from bert_tf.corpus import instances, stages, text
from bert_tf.corpus.settings import CreationConfig
from bert_tf.corpus.stages import PartPlan
from bert_tf.corpus.text import TextBlock
from bert_tf.data import records
from bert_tf.errors import InputError

TEXT = "wa wb1\nwb\nwc wa wa\n\nwb wb\nwa1\n" * 40


@pytest.fixture
def config(tmp_path):
    vocab_file = tmp_path / "vocab.txt"
    vocab_file.write_text(
        "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n[unused0]\nwa\nwb\nwc\n##1\n"
    )
    return CreationConfig("", "", str(vocab_file), max_seq_length=13)


@pytest.fixture
def folder(tmp_path, config):
    """A scratch folder as the first two stages leave it."""
    block = TextBlock("text", 0, TEXT.encode())
    with text.CorpusWriter(str(tmp_path)) as writer:
        writer.append(stages.encode(config, str(tmp_path), block))
    spans = cut(config, str(tmp_path), 0, writer.num_sentences)
    spans.tofile(tmp_path / stages.SPANS)
    return str(tmp_path)


def cut(config, folder, first, stop):
    return stages.cut(config, folder, stages.CutPlan(first, stop, 1000))


def plan(first, stop, total=101, is_compressed=False):
    return PartPlan(0, first, stop, total, is_compressed)


def test_tools_know_the_vocabulary(config):
    tools = stages.tools(config)
    assert (tools.unk_id, tools.cls_id, tools.sep_id) == (1, 2, 3)
    assert tools.masking.mask_id == 4
    assert tools.masking.special_ids == (2, 3)
    assert tools.masking.replaceable_ids.tolist() == [6, 7, 8, 9]
    assert np.flatnonzero(tools.masking.continuation).tolist() == [9]
    assert tools.token_dtype == np.uint8


def test_tools_ask_for_the_special_tokens(config, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("[PAD]\n[UNK]\nwa\n")
    config = dataclasses.replace(config, vocab_file=str(other))
    with pytest.raises(InputError, match=r"\[CLS\] \[SEP\] \[MASK\]"):
        stages.tools(config)


@pytest.mark.parametrize("next_sentence", [True, False])
def test_pieces_do_not_depend_on_each_other(config, folder, next_sentence):
    config = dataclasses.replace(config, next_sentence=next_sentence)
    whole = cut(config, folder, 0, 200)
    # A document of three sentences, others of five.
    pieces = [
        cut(config, folder, first, stop) for first, stop in [(98, 200), (0, 98)]
    ]
    np.testing.assert_array_equal(np.concatenate(pieces[::-1]), whole)


def test_parts_do_not_depend_on_each_other(config, folder):
    part = stages.make_part(config, folder, plan(50, 70))
    stages.make_part(config, folder, plan(0, 50))
    assert part.data == stages.make_part(config, folder, plan(50, 70)).data
    pieces = [
        stages.make_part(config, folder, plan(first, stop)).data
        for first, stop in [(50, 57), (57, 70)]
    ]
    assert b"".join(pieces) == part.data


def test_the_seed_decides_on_each_stage(config, folder):
    other = dataclasses.replace(config, random_seed=1)
    spans = [cut(settings, folder, 0, 200) for settings in (config, other)]
    assert len(spans[0]) != len(spans[1]) or (spans[0] != spans[1]).any()
    seeds = stages.shuffling_seed(config), stages.shuffling_seed(other)
    assert seeds[0] != seeds[1]
    # The same instances, masked in another way.
    written = [
        masked_at(settings, folder, np.arange(20))
        for settings in (config, config, other)
    ]
    assert written[0] == written[1] != written[2]
    assert written[0] != masked_at(config, folder, np.arange(1, 21))


def masked_at(config, folder, places):
    """The first 20 instances as bytes, as if they were at these places."""
    spans = np.fromfile(f"{folder}/{stages.SPANS}", instances.SPAN)[:20]
    tokens = np.fromfile(f"{folder}/{text.TOKENS}", np.uint8)
    read = functools.partial(text.slices, tokens)
    return stages.part_of(config, plan(0, 20), places, spans, read).data


def test_a_part_holds_its_records(config, folder, tmp_path):
    part = stages.make_part(config, folder, plan(0, 37))
    packed = stages.make_part(config, folder, plan(0, 37, is_compressed=True))
    assert part.num_instances == packed.num_instances == 37
    assert part.counts == packed.counts
    assert part.counts["instance_tokens"] <= 37 * 13
    for name, data in ("part", part.data), ("part.gz", packed.data):
        path = tmp_path / name
        path.write_bytes(data)
        assert records.verify(str(path)) == 37
        assert records.check_first_record(str(path), config.schema)


def test_only_the_first_part_shows_samples(config, folder):
    samples = stages.make_part(config, folder, plan(0, 37)).samples
    assert samples["input_ids"].shape == (stages.NUM_SAMPLES, 13)
    assert samples["next_sentence_labels"].shape == (stages.NUM_SAMPLES, 1)
    later = stages.make_part(config, folder, plan(37, 50)).samples
    assert later["input_ids"].shape == (0, 13)


def test_parts_shuffle_all_instances(config, folder):
    spans = np.fromfile(f"{folder}/{stages.SPANS}", instances.SPAN)
    total = len(spans)
    parts = [
        stages.make_part(config, folder, plan(first, stop, total))
        for first, stop in [(0, total // 3), (total // 3, total)]
    ]
    counts = sum((part.counts for part in parts), start=type(parts[0].counts)())
    assert counts["random_next"] == spans["is_random_next"].sum()
    tokens = spans["a_length"].sum() + spans["b_length"].sum()
    assert counts["instance_tokens"] == tokens + 3 * total
