"""What a pipeline writes, compared with what one machine writes.

`test_cluster_stages` has the work itself, without Beam.
"""

import dataclasses
import json
import os
import pathlib

import pytest
import tensorflow as tf

from bert_tf.corpus import beam, creation, ranges
from bert_tf.corpus.settings import CreationConfig, PieceSizes
from bert_tf.errors import InputError
from tests.text_corpora import write_text

pytest.importorskip("apache_beam")

SIZES = PieceSizes(sentences=11, instances=61, text_bytes=3000)
TWO_PROCESSES = "--direct_running_mode=multi_processing --direct_num_workers=2"


@pytest.fixture
def config(tmp_path, vocab_file):
    write_text(tmp_path / "a.txt", 11)
    write_text(tmp_path / "b.txt.gz", 5, seed=1, most_sentences=50)
    output = f"{tmp_path}/out/a.tfrecord,{tmp_path}/out/sub/b.tfrecord.gz"
    return CreationConfig(
        f"{tmp_path}/a.txt,{tmp_path}/b.txt.gz",
        output,
        str(vocab_file),
        max_seq_length=31,
        dupe_factor=3,
    )


def written(folder):
    """The bytes of all files, also of those that should not be there."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in pathlib.Path(folder).rglob("*")
        if path.is_file()
    }


def as_json_lines(folder, config):
    """The same text as JSON, and where it is."""
    text = (folder / "a.txt").read_text()
    lines = [json.dumps({"body": part}) for part in text.split("\n\n")]
    (folder / "a.jsonl").write_text("\n".join(lines))
    return dataclasses.replace(
        config,
        input_file=f"{folder}/a.jsonl",
        input_format="jsonl",
        jsonl_field="body",
    )


def require_equal(config, folder, options, caplog):
    """Has both write and compares bytes, manifests, and what is shown."""
    results = []
    for create, argument in [
        (creation.create, 1),
        (beam.create, options),
    ]:
        caplog.clear()
        manifest = create(config, argument, SIZES)
        shown = [
            record.getMessage()
            for record in caplog.records
            if record.funcName == "log_samples"
        ]
        assert len(shown) == 20
        results.append((manifest, written(folder / "out"), shown))
        assert len(results[-1][1]) == 3
    assert results[0] == results[1]


def test_the_files_are_the_same_byte_for_byte(config, tmp_path, caplog):
    caplog.set_level("INFO")
    require_equal(config, tmp_path, "", caplog)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pairs", "single", "jsonl"])
def test_the_files_of_two_processes_are_the_same(
    config, tmp_path, caplog, kind
):
    caplog.set_level("INFO")
    if kind == "single":
        config = dataclasses.replace(config, next_sentence=False)
    if kind == "jsonl":
        config = as_json_lines(tmp_path, config)
    require_equal(config, tmp_path, TWO_PROCESSES, caplog)


def test_places_that_tensorflow_reaches(config, tmp_path):
    tf.io.gfile.copy(f"{tmp_path}/a.txt", "ram://beam/a.txt", overwrite=True)
    there = dataclasses.replace(
        config, input_file="ram://beam/a.txt", output_file="ram://beam/out"
    )
    beam.create(there, "", SIZES)
    here = dataclasses.replace(config, input_file=f"{tmp_path}/a.txt")
    here = dataclasses.replace(here, output_file=f"{tmp_path}/here")
    creation.create(here, 1, SIZES)
    with tf.io.gfile.GFile("ram://beam/out", "rb") as file:
        assert file.read() == (tmp_path / "here").read_bytes()
    names = tf.io.gfile.listdir("ram://beam")
    assert sorted(names) == ["a.txt", "manifest.out.json", "out"]


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        (b"wa\nwb\n\nwc\xff\n", {}, r"0xff at .*a\.txt:4; convert"),
        (b"wa\nwb\n", {}, "Received: 1 document; put blank lines"),
        (
            b"wa\nwb\n\nwa\n",
            {"output_file": ",".join(f"{{}}/out/{n}" for n in range(9))},
            "instances for 9 files",
        ),
        (
            b'{"text": "wa\\nwb"}\n{"txt": ""}',
            {"input_format": "jsonl"},
            r"'txt' at .*a\.txt:2; name",
        ),
    ],
)
def test_mistakes_are_told_and_leave_nothing(
    config, tmp_path, text, settings, message
):
    (tmp_path / "a.txt").write_bytes(text)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/0").write_bytes(b"old")
    settings = {"output_file": "{}/out/0", "dupe_factor": 1, **settings}
    settings["output_file"] = settings["output_file"].replace(
        "{}", str(tmp_path)
    )
    config = dataclasses.replace(
        config, input_file=f"{tmp_path}/a.txt", **settings
    )
    with pytest.raises(InputError, match=message):
        beam.create(config, "", SIZES)
    assert written(tmp_path / "out") == {"0": b"old"}
    assert os.listdir(tmp_path / "out") == ["0"]


def test_a_place_that_cannot_be_written_is_told_first(config, tmp_path):
    (tmp_path / "file").write_text("")
    output = f"{tmp_path}/out/a,{tmp_path}/file/b"
    config = dataclasses.replace(config, output_file=output)
    (tmp_path / "a.txt").write_bytes(b"\xff")  # Told if it is read.
    with pytest.raises(InputError, match=r"Cannot write .*file/b"):
        beam.create(config, "", SIZES)
    assert written(tmp_path / "out") == {}


def test_a_job_has_no_more_tasks_than_can_be_described(tmp_path, monkeypatch):
    monkeypatch.setattr(beam, "MAX_TASKS", 10)
    (tmp_path / "a").write_bytes(b"x" * 10_000)
    (tmp_path / "b.gz").write_bytes(b"x" * 10_000)
    paths = [f"{tmp_path}/a", f"{tmp_path}/b.gz"]
    tasks = list(beam.plan(paths, 10))
    assert [task.ranges[0].path for task in tasks] == [paths[0]] * 10 + [
        paths[1]
    ]
    assert len(list(beam.plan(paths, 5000))) == 3
    assert isinstance(tasks[0], ranges.ReadingTask)
