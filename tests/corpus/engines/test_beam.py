"""The pipeline and its options; `test_cluster` has its steps without Beam."""

import dataclasses
import json
import sys
from unittest import mock

import pytest
import tensorflow as tf

from bert_tf.corpus import creation
from bert_tf.corpus.engines import beam
from bert_tf.corpus.settings import PieceSizes
from bert_tf.errors import InputError
from tests.corpus import engine_checks
from tests.text_corpora import config_of_two_texts


def test_beam_has_to_be_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(InputError, match=r"pip install '\.\[beam\]'"):
        beam.new_pipeline("")


def fake_pipeline(outcome):
    """A pipeline that runs on a remote cluster."""
    pipeline = mock.Mock()
    pipeline.run.return_value.wait_until_finish.side_effect = [outcome]
    return pipeline


def test_errors_of_a_cluster_are_understood():
    beam.run(fake_pipeline("DONE"))
    with pytest.raises(InputError, match="ended in the state CANCELLED"):
        beam.run(fake_pipeline("CANCELLED"))
    text = (
        "Pipeline failed: java.lang.RuntimeException: Traceback ...\n"
        "bert_tf.errors.InputError: Cannot write gs://x/y: full. [while "
        "running 'Write the chunks']\n\n\tat org.apache.beam"
    )
    with pytest.raises(InputError, match=r"^Cannot write gs://x/y: full\.$"):
        beam.run(fake_pipeline(RuntimeError(text)))
    with pytest.raises(RuntimeError, match="another error"):
        beam.run(fake_pipeline(RuntimeError("another error")))
    # Ctrl-C cancels a remote job.
    pipeline = fake_pipeline(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        beam.run(pipeline)
    pipeline.run.return_value.cancel.assert_called_once()


# What follows needs Apache Beam.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--runner=Flnk", "Unexpected pipeline runner: Flnk.*FlinkRunner"),
        ("--direct_num_worker=2", "Did you mean 'direct_num_workers'?"),
        ("--direct_num_workers=two", "invalid int value: 'two'$"),
        ("direct", "expected --name=value: 'direct'"),
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

    def create(job):
        return beam.create(job, options, SIZES)

    engine_checks.assert_equal_to_one_machine(
        create, config, SIZES, tmp_path / "out", caplog
    )


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


@engine_checks.UNUSABLE
def test_unusable_texts_leave_existing_files(
    config, tmp_path, text, outputs, message
):
    def create(job):
        return beam.create(job, "", SIZES)

    engine_checks.assert_existing_files_are_left(
        create, config, tmp_path, text, outputs, message
    )
