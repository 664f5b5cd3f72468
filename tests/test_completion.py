"""Shells complete the jobs of `bert-tf` and their flags."""

import importlib
import shutil
import subprocess

import in_process
import pytest

from bert_tf import command, completion
from bert_tf.command import JOBS
from bert_tf.options import declared

OPTIONS = {job: command.options_of(job) for job in JOBS}
SCRIPTS = {
    shell: completion.script(shell, OPTIONS) for shell in completion.SHELLS
}


@pytest.mark.parametrize("job", JOBS)
def test_the_flags_of_a_job_are_its_options(job):
    config_type = OPTIONS[job]
    words = completion.flags(config_type)
    assert [word.strip("-=") for word in words] == [*declared(config_type)]
    flags = {word for word in words if word[-1] != "="}
    assert flags == {
        f"--{name}"
        for name, (kind, _) in declared(config_type).items()
        if kind is bool
    }
    module = importlib.import_module(f"bert_tf.jobs.{job}")
    assert in_process.config_type_of(module) is config_type


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
@pytest.mark.parametrize(
    ("words", "completions"),
    [
        (["cl"], ["classifier"]),
        (["--v"], ["--version"]),
        (["classifier", "--max_s"], ["--max_seq_length="]),
        (["squad", "--do_t"], ["--do_train"]),
        (["squad", "--do_train", "--version_2"], ["--version_2_with_negative"]),
        # The shell completes names of files.
        (["squad", "--train_file", "="], []),
        (["squad", "--train_file", "=", "tr"], []),
        (["nothing", "--do_"], []),
    ],
)
def test_bash_completes(words, completions):
    program = (
        f"{SCRIPTS['bash']}\n"
        'COMP_WORDS=(bert-tf "$@"); COMP_CWORD=$#\n'
        '_bert_tf; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", program, "bash", *words],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == completions


@pytest.mark.skipif(not shutil.which("zsh"), reason="no zsh")
def test_zsh_parses_its_script():
    script = SCRIPTS["zsh"]
    subprocess.run(["zsh", "-n"], input=script, text=True, check=True)
