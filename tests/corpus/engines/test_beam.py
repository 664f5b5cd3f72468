"""The pipeline and its options; `test_cluster` has its steps without Beam."""

import dataclasses
import json
import os
import sys

import pytest
import tensorflow as tf

from bert_tf.corpus import creation
from bert_tf.corpus.engines import beam
from bert_tf.corpus.settings import PieceSizes
from bert_tf.errors import InputError
from tests.text_corpora import config_of_two_texts, files_in


def test_beam_has_to_be_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(InputError, match=r"pip install '\.\[beam\]'"):
        beam.new_pipeline("")


class FakePipeline:
    """A pipeline that runs on a remote cluster."""

    def __init__(self, outcome):
        self.outcome = outcome
        self.is_cancelled = False

    def run(self):
        return self

    def wait_until_finish(self):
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome

    def cancel(self):
        self.is_cancelled = True


def test_errors_of_a_cluster_are_understood():
    beam.run(FakePipeline("DONE"))
    with pytest.raises(InputError, match="ended in the state CANCELLED"):
        beam.run(FakePipeline("CANCELLED"))
    text = (
        "Pipeline failed: java.lang.RuntimeException: Traceback ...\n"
        "bert_tf.errors.InputError: Cannot write gs://x/y: full. [while "
        "running 'Write the chunks']\n\n\tat org.apache.beam"
    )
    with pytest.raises(InputError, match=r"^Cannot write gs://x/y: full\.$"):
        beam.run(FakePipeline(RuntimeError(text)))
    with pytest.raises(RuntimeError, match="another error"):
        beam.run(FakePipeline(RuntimeError("another error")))
    # Ctrl-C cancels a remote job.
    pipeline = FakePipeline(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        beam.run(pipeline)
    assert pipeline.is_cancelled


# What follows needs Apache Beam.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--runner=Flnk", "Unexpected pipeline runner: Flnk.*FlinkRunner"),
        ("--runner=no.such.Runner", "no.such.Runner.*No module named 'no'"),
        ("--direct_num_worker=2", "Did you mean 'direct_num_workers'?"),
        ("--nothing_like_this_at_all", r"no option --nothing_like_this_at_all"),
        ("--direct_num_workers=two", "invalid int value: 'two'$"),
        ("direct", "expected --name=value: 'direct'"),
        ("--job_name='open", "No closing quotation"),
        ("--runner=DataflowRunner", "Missing required option: project"),
    ],
)
def test_unusable_options_are_one_line(options, message):
    pytest.importorskip("apache_beam")
    with pytest.raises(InputError, match=message) as raised:
        beam.new_pipeline(options)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", {}),
        ("--runner=direct --direct_num_workers 2", {"direct_num_workers": 2}),
        (
            "--runner=DirectRunner --labels='a=b c' --labels=d=e",
            {"labels": ["a=b c", "d=e"]},
        ),
        # The job server knows this option.
        ("--runner=FlinkRunner --of_a_server=3", {"of_a_server": "3"}),
    ],
)
def test_options_reach_the_pipeline(options, expected):
    pytest.importorskip("apache_beam")
    pipeline = beam.new_pipeline(options)
    given = pipeline.options.get_all_options(retain_unknown_options=True)
    assert expected.items() <= given.items()


def raise_error(error):
    raise error


@pytest.mark.parametrize(
    "error", [InputError("Cannot write x."), KeyError("a bug")]
)
def test_errors_of_workers_are_raised(error):
    apache_beam = pytest.importorskip("apache_beam")
    pipeline = beam.new_pipeline("")
    pipeline | apache_beam.Create([error]) | apache_beam.Map(raise_error)
    with pytest.raises(type(error), match=r"^Cannot write x\.$|a bug"):
        beam.run(pipeline)


SIZES = PieceSizes(sentences=11, instances=61, text_bytes=3000)
TWO_PROCESSES = "--direct_running_mode=multi_processing --direct_num_workers=2"


@pytest.fixture
def config(tmp_path, vocab_file):
    pytest.importorskip("apache_beam")
    return config_of_two_texts(tmp_path, vocab_file, 11, 50)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ("", "pairs"),
        *(
            pytest.param(TWO_PROCESSES, kind, marks=pytest.mark.slow)
            for kind in ("pairs", "single", "jsonl")
        ),
    ],
)
def test_files_and_samples_equal_those_of_one_machine(
    config, tmp_path, caplog, options, kind
):
    caplog.set_level("INFO")
    if kind == "single":
        config = dataclasses.replace(config, next_sentence=False)
    if kind == "jsonl":
        documents = (tmp_path / "a.txt").read_text().split("\n\n")
        lines = [json.dumps({"body": document}) for document in documents]
        (tmp_path / "a.jsonl").write_text("\n".join(lines))
        config = dataclasses.replace(
            config,
            input_file=f"{tmp_path}/a.jsonl",
            input_format="jsonl",
            jsonl_field="body",
        )
    results = []
    for create, argument in (creation.create, 1), (beam.create, options):
        caplog.clear()
        manifest = create(config, argument, SIZES)
        samples = [
            record.getMessage()
            for record in caplog.records
            if record.funcName == "log_samples"
        ]
        assert len(samples) == 20
        results.append((manifest, files_in(tmp_path / "out"), samples))
        assert len(results[-1][1]) == 3
    assert results[0] == results[1]


def test_remote_files(config, tmp_path):
    tf.io.gfile.copy(f"{tmp_path}/a.txt", "ram://beam/a.txt", overwrite=True)
    remote = dataclasses.replace(
        config, input_file="ram://beam/a.txt", output_file="ram://beam/out"
    )
    beam.create(remote, "", SIZES)
    local = dataclasses.replace(
        config, input_file=f"{tmp_path}/a.txt", output_file=f"{tmp_path}/local"
    )
    creation.create(local, 1, SIZES)
    with tf.io.gfile.GFile("ram://beam/out", "rb") as file:
        assert file.read() == (tmp_path / "local").read_bytes()
    names = tf.io.gfile.listdir("ram://beam")
    assert sorted(names) == ["a.txt", "manifest.out.json", "out"]


@pytest.mark.parametrize(
    ("text", "outputs", "message"),
    [
        (b"wa\nwb\n\nwc\xff\n", "out/0", r"a\.txt:4: byte 0xff"),
        (b"wa\nwb\n", "out/0", "has 1 with 2 in all. Put blank lines"),
        (b"wa\nwb\n\nwa\n", "out/0,1,2,3,4,5,6", "instances for 7 files"),
        # A path that cannot be written fails before the text is read.
        (b"\xff", "out/0,a.txt/b", r"Cannot write .*a.txt/b"),
    ],
)
def test_unusable_texts_leave_existing_files(
    config, tmp_path, monkeypatch, text, outputs, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_bytes(text)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/0").write_bytes(b"old")
    before = files_in(tmp_path)
    config = dataclasses.replace(
        config, input_file="a.txt", output_file=outputs, dupe_factor=1
    )
    with pytest.raises(InputError, match=message):
        beam.create(config, "", SIZES)
    assert files_in(tmp_path) == before
    assert os.listdir("out") == ["0"]
