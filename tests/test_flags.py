"""One way in: what is wrong with a command line is said in one line."""

import os
import subprocess
import sys
import textwrap

import pytest
from absl import flags
from absl.testing import flagsaver
from checkout import ROOT

from bert_tf import flags as bert_flags
from bert_tf.errors import InputError

SCRIPT = """
    from absl import flags
    from bert_tf import flags as bert_flags
    from bert_tf.errors import InputError

    flags.DEFINE_string("input_file", None, "What to read.")
    flags.DEFINE_bool("do_lower_case", True, "Whether to lower-case.")
    flags.DEFINE_integer("num_steps", 7, "Steps.")
    flags.DEFINE_integer("batch_size", 3, "Examples.")
    flags.DEFINE_float("dropout", 0.1, "A share.", 0.0, 1.0)
    flags.DEFINE_float("num_train_epochs", 1.0, "Epochs.")

    def main():
        name = flags.FLAGS.input_file
        if name == "bad":
            raise InputError("expected a good file.\\nReceived: 'bad'")
        if name == "missing":
            open("/nowhere/at/all")
        if name == "bug":
            raise KeyError("ours")
        print("lower" if flags.FLAGS.do_lower_case else "cased")

    bert_flags.run(main, required=["input_file"])
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("script") / "script.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return path


def call(script, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("--nodo_lower_case", "cased"),
        ("--do_lower_case=False", "cased"),
        ("--do_lower_case", "lower"),
    ],
)
def test_flags_reach_the_script(script, argument, expected):
    done = call(script, "--input_file=x", argument)
    assert (done.returncode, done.stdout.strip()) == (0, expected)


def test_names_that_tensorflow_cannot_take_are_refused(script):
    name = "--input_file=" + os.fsdecode(b"a\xffb")
    assert call(script, name).returncode == 0
    program = f"""
        import sys, runpy
        sys.modules["tensorflow"] = None
        sys.argv[0] = {str(script)!r}
        runpy.run_path({str(script)!r}, run_name="__main__")
    """
    done = call("-c", textwrap.dedent(program), name)
    assert done.returncode == 2
    assert r"--input_file must be UTF-8; got 'a\udcffb'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([], 2, "expected --input_file"),
        (["--input_file=x", "--do_lower=False"], 2, "'do_lower'"),
        (["--input_fil=x"], 2, "Did you mean: input_file"),
        (["--input_file=x", "--do_lower_case", "False"], 2, "'False'"),
        (["--input_file=x", "--do_lower_case=maybe"], 2, "maybe"),
        (["--input_file=x", "--nodo_lower_case=no"], 2, "nodo_lower_case"),
        (
            ["--input_file=x", f"--num_steps={2**63}"],
            2,
            f"--num_steps must be at most {2**63 - 1:,}; got {2**63} (",
        ),
        (
            ["--input_file=x", f"--num_steps=-{10**400}"],
            2,
            f"--num_steps must be at least -{2**63 - 1:,}; got -",
        ),
        (
            ["--input_file=x", f"--batch_size={2**20 + 1}"],
            2,
            "--batch_size must be at most 1,048,576; got 1048577 (",
        ),
        (
            ["--input_file=x", "--dropout=nan"],
            2,
            "--dropout must be a finite number; got nan (",
        ),
        (["--input_file=x", "--dropout=inf"], 2, "--dropout=inf"),
        (["--input_file=x", "--num_train_epochs=1e308"], 2, "got 1e+308 ("),
        (["--input_file=bad"], 1, "expected a good file. Received: 'bad'"),
        (["--input_file=missing"], 1, "No such file"),
    ],
)
def test_a_users_mistake_is_one_line(script, arguments, status, message):
    done = call(script, *arguments)
    assert done.returncode == status
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_help_lists_shared_flags_too_and_is_no_failure(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(
        "from bert_tf import flags\n"
        "flags.define_training_flags()\n"
        "flags.run(lambda: None)\n"
    )
    done = call(path, "--help")
    assert done.returncode == 0
    assert "--learning_rate" in done.stdout


@pytest.mark.parametrize(
    ("name", "status", "line"),
    [
        ("SIGINT", 130, "interrupted"),
        ("SIGTERM", 143, "stopped by SIGTERM"),
        ("SIGHUP", 129, "stopped by SIGHUP"),
    ],
)
def test_to_be_stopped_is_one_line(tmp_path, name, status, line):
    """And nothing half-written stays behind."""
    path = tmp_path / "script.py"
    path.write_text(
        "import os, signal\n"
        "from bert_tf import files, flags\n"
        "def main():\n"
        f"    with files.atomic_writer({str(tmp_path / 'half')!r}):\n"
        f"        os.kill(os.getpid(), signal.{name})\n"
        "flags.run(main)\n"
    )
    done = call(path)
    assert done.returncode == status
    assert done.stderr.endswith(f"error: {line}\n")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == [path]


STOPPED_WHILE = """
    import os, signal, sys, time
    from bert_tf import flags

    class Object:
        def __del__(self):
            os.kill(os.getpid(), signal.{name})

    class Slow:
        def __del__(self):
            time.sleep(0.1)

    class Broken:
        def __del__(self):
            raise ValueError("its own")

    def finalized():
        Object()

    def finalized_twice():
        Object(), Slow()

    def caught():
        try:
            os.kill(os.getpid(), signal.{name})
        except BaseException:
            pass

    def ignored():
        signal.signal(signal.{name}, signal.SIG_IGN)
        flags.run(caught)

    def broken():
        Broken()

    def long(function):
        function()
        time.sleep({seconds})
        print("went on")

    if {case}.__name__ == "ignored":
        ignored()
    flags.run(lambda: long({case}))
"""


def stop_while(tmp_path, case, name="SIGTERM", seconds=0):
    path = tmp_path / "script.py"
    text = STOPPED_WHILE.format(case=case, name=name, seconds=seconds)
    path.write_text(textwrap.dedent(text))
    return call(path)


@pytest.mark.parametrize(
    ("name", "status", "line"),
    [("SIGINT", 130, "interrupted"), ("SIGTERM", 143, "stopped by SIGTERM")],
)
@pytest.mark.parametrize("case", ["finalized", "finalized_twice"])
def test_a_signal_in_a_finalizer_is_not_lost(
    tmp_path, case, name, status, line
):
    """Python drops what is raised there, and goes on."""
    done = stop_while(tmp_path, case, name, seconds=60)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.endswith(f"error: {line}\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("case", ["finalized", "caught"])
def test_nor_at_the_very_end(tmp_path, case):
    done = stop_while(tmp_path, case)
    assert done.returncode == 143
    assert done.stderr.endswith("error: stopped by SIGTERM\n")


def test_what_was_to_be_ignored_is(tmp_path):
    """As by `nohup`."""
    done = stop_while(tmp_path, "ignored", "SIGHUP")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_signal_tests_pass_under_nohup():
    """`nohup` ignores SIGHUP, and the programs that tests start inherit it."""
    done = subprocess.run(
        [
            *("nohup", sys.executable, "-m", "pytest"),
            f"{__file__}::test_to_be_stopped_is_one_line",
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout


def test_a_fault_in_a_finalizer_is_told_as_ever(tmp_path):
    done = stop_while(tmp_path, "broken")
    assert (done.returncode, done.stdout) == (0, "went on\n")
    assert "ValueError: its own" in done.stderr


def test_a_fault_of_ours_keeps_its_traceback(script):
    done = call(script, "--input_file=bug")
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_a_script_without_tensorflow_stays_without(script):
    code = (
        "import sys; from bert_tf import flags; "
        "sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.fixture(scope="module")
def shared_flags():
    """The shared groups; scripts that other tests load define them too."""
    before = set(flags.FLAGS)
    bert_flags.define_training_flags()
    bert_flags.define_device_flags()
    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["test"])
    yield flags.FLAGS
    for name in set(flags.FLAGS) - before:
        delattr(flags.FLAGS, name)


def test_training_flags_become_a_config(shared_flags):
    with flagsaver.flagsaver(
        train_batch_size=6, optimizer="lamb", jit_compile="false"
    ):
        config = bert_flags.training_config(
            num_train_steps=9, num_warmup_steps=2
        )
    assert config.train_batch_size == 6
    assert config.optimizer == "lamb"
    assert config.jit_compile is False
    assert (config.num_train_steps, config.num_warmup_steps) == (9, 2)


def test_impossible_values_are_refused(shared_flags):
    with (
        flagsaver.flagsaver(train_batch_size=0),
        pytest.raises(InputError, match=r"--train_batch_size .* Received: 0"),
    ):
        bert_flags.training_config(1, 0)


@pytest.mark.parametrize(
    ("values", "strategy", "name"),
    [
        ({"tpu_name": "mine"}, "auto", None),
        ({"tpu_name": "mine", "use_tpu": True}, "tpu", "mine"),
        ({"master": "grpc://x", "use_tpu": True}, "tpu", "grpc://x"),
        ({"tpu_name": "mine", "distribution_strategy": "tpu"}, "tpu", "mine"),
        ({"distribution_strategy": "mirrored"}, "mirrored", None),
    ],
)
def test_a_tpus_name_alone_asks_for_none(shared_flags, values, strategy, name):
    with flagsaver.flagsaver(**values):
        config = bert_flags.distribution_config()
    assert (config.strategy, config.tpu_name) == (strategy, name)


def test_a_tpu_and_something_else_are_not_both_to_be_had(shared_flags):
    with (
        flagsaver.flagsaver(use_tpu=True, distribution_strategy="mirrored"),
        pytest.raises(InputError, match=r"auto or tpu. Received: mirrored"),
    ):
        bert_flags.distribution_config()


@pytest.mark.parametrize(
    "script",
    [
        "run_pretraining.py",
        "run_classifier.py",
        "run_squad.py",
        "run_ner.py",
        "extract_features.py",
    ],
)
def test_whoever_trains_or_predicts_takes_these_flags(shared_flags, script):
    names = {
        *("distribution_strategy", "use_tpu", "tpu_name", "tpu_zone"),
        *("gcp_project", "master", "num_tpu_cores", "iterations_per_loop"),
    }
    assert names <= set(shared_flags)
    text = (ROOT / script).read_text(encoding="utf-8")
    assert "\nbert_flags.define_device_flags()\n" in text
    assert " = bert_flags.connect()\n" in text
