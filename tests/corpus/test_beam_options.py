import sys

import pytest

from bert_tf.corpus.beam import new_pipeline, run
from bert_tf.errors import InputError


def test_beam_has_to_be_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(InputError, match=r"pip install 'bert_tf\[beam\]'"):
        new_pipeline("")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--runner=Flnk", "name of a runner.*FlinkRunner.*--runner=Flnk"),
        ("--runner=no.such.Runner", "no.such.Runner.*No module named 'no'"),
        ("--direct_num_worker=2", "did you mean --direct_num_workers?"),
        ("--nothing_like_this_at_all", "no option --nothing_like_this_at_all$"),
        ("--direct_num_workers=two", "invalid int value: 'two'$"),
        ("direct", "'direct' where a --name=value is expected"),
        ("--runner=DirectRunner --streaming x y", "'y' where a --name"),
        ("--job_name='open", "No closing quotation"),
        ("--runner=DataflowRunner", "Missing required option: project"),
    ],
)
def test_options_that_cannot_be_used_are_told_in_one_line(words, message):
    pytest.importorskip("apache_beam")
    with pytest.raises(InputError, match=message) as raised:
        new_pipeline(words)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--runner=direct --direct_num_workers 2",
        "--runner=DirectRunner --labels='a=b c' --labels=d=e",
        # What a job server knows and nobody here.
        "--runner=FlinkRunner --of_a_job_server=3",
    ],
)
def test_options_reach_the_pipeline(words):
    pytest.importorskip("apache_beam")
    pipeline = new_pipeline(words)
    options = pipeline.options.get_all_options(retain_unknown_options=True)
    if "num_workers" in words:
        assert options["direct_num_workers"] == 2
    if "labels" in words:
        assert options["labels"] == ["a=b c", "d=e"]
    if "Flink" in words:
        assert options["of_a_job_server"] == "3"


def raise_error(element, error):
    raise error


@pytest.mark.parametrize(
    ("raised", "expected", "message"),
    [
        (
            InputError("Cannot write x: disk full."),
            InputError,
            "^Cannot .*l\\.$",
        ),
        (KeyError("a fault of ours"), KeyError, "a fault of ours"),
    ],
)
def test_errors_of_workers_come_back(raised, expected, message):
    beam = pytest.importorskip("apache_beam")
    pipeline = new_pipeline("")
    pipeline | beam.Create([1]) | beam.Map(raise_error, raised)
    with pytest.raises(expected, match=message):
        run(pipeline)


class FakePipeline:
    """A runner elsewhere, seen from here."""

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


def test_what_a_cluster_says_is_understood():
    run(FakePipeline("DONE"))
    with pytest.raises(InputError, match="Received: the state CANCELLED"):
        run(FakePipeline("CANCELLED"))
    text = (
        "Pipeline failed: java.lang.RuntimeException: Traceback ...\n"
        "bert_tf.errors.InputError: Cannot write gs://x/y: full. [while "
        "running 'Write the parts']\n\n\tat org.apache.beam"
    )
    with pytest.raises(InputError, match=r"^Cannot write gs://x/y: full\.$"):
        run(FakePipeline(RuntimeError(text)))
    with pytest.raises(RuntimeError, match="of its own"):
        run(FakePipeline(RuntimeError("trouble of its own")))


def test_a_job_elsewhere_does_not_go_on_alone():
    pipeline = FakePipeline(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run(pipeline)
    assert pipeline.is_cancelled
