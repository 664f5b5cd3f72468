"""Command lines are checked without TensorFlow, which takes seconds to import.

The fixture `answer` runs a job in a process in which importing TensorFlow or
Keras fails.
"""

import json
import re
import subprocess
import sys

import pytest
from checkout import ROOT

from bert_tf.base.options import declared
from bert_tf.command import JOBS, options_of
from bert_tf.jobs import trials
from bert_tf.kinds.pretraining import task as pretraining
from bert_tf.kinds.vectors import features
from bert_tf.kinds.vectors import task as embedding

# The process forks for each command line, so that it imports options once.
PROGRAM = """
import json, os, sys
import bert_tf  # Its finder would find Keras first.

class Refuses:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in ("tensorflow", "keras"):
            raise AssertionError(f"{name} is imported")

sys.meta_path.insert(0, Refuses)
from bert_tf import cli, command

for job in command.JOBS:
    command.options_of(job)
answers = []
for job, *words in json.loads(sys.argv[1]):
    read, write = os.pipe()
    if not os.fork():
        os.dup2(write, 1)
        os.dup2(write, 2)
        sys.argv = [job, *words]
        command.run_job(job)
    os.close(write)
    with open(read) as output:
        text = output.read()
    answers.append((os.waitstatus_to_exitcode(os.wait()[1]), text))
print(json.dumps(answers))
"""

RUN = ["--output_dir=new", "--do_train"]
TINY = ["--bert_config_file=there", "--vocab_file=there"]
# For each job a correct command line but for what follows: what is missing; an
# impossible combination, and what the error says.
CASES = {
    "vocabulary": (
        ["--output_file=there"],
        ["--input_file=missing"],
        ["--input_file=there"],
        "would overwrite",
    ),
    "pretraining_data": (
        ["--output_file=new", "--vocab_file=there"],
        ["--input_file=missing"],
        ["--input_file=there", "--beam_options=x"],
        "has no effect with --runner=local",
    ),
    "pretraining": (
        ["--input_file=there", *RUN],
        ["--init_checkpoint=missing"],
        ["--model_size=tiny", "--bert_config_file=there"],
        "exclude each other",
    ),
    "classifier": (
        ["--task_name=custom", "--data_dir=.", "--train_file=there", *RUN],
        ["--init_checkpoint=missing"],
        [*TINY, "--lora_rank=3"],
        "--lora_rank trains adapters of a pre-trained encoder.",
    ),
    "squad": (
        RUN,
        ["--train_file=missing", *TINY],
        ["--train_file=there", "--scorer=korquad", "--version_2_with_negative"],
        "exclude each other",
    ),
    "ner": (
        ["--train_file=there", *RUN],
        [*TINY, "--teacher=missing"],
        [*TINY, "--temperature=3"],
        "--temperature has no effect without --teacher.",
    ),
    "embeddings": (
        ["--task_name=sts-b", *RUN],
        ["--data_dir=missing", *TINY],
        ["--data_dir=.", *TINY, "--early_stopping_patience=2"],
        "--early_stopping_patience has no effect without --save_best",
    ),
    "features": (
        ["--output_file=new", "--init_checkpoint=there"],
        ["--input_file=missing"],
        ["--input_file=there", "--do_export"],
        "--do_export needs --export_dir.",
    ),
    "fill_mask": (
        [],
        ["--init_checkpoint=missing"],
        ["--init_checkpoint=there", "--text_b=x"],
        "--text_b needs --text",
    ),
    "convert_checkpoint": (
        ["--output_dir=new", "--to=keras"],
        ["--input=missing"],
        ["--input=there", "--keep_optimizer"],
        "--keep_optimizer needs --to=google",
    ),
    "convert_saved_model": (
        ["--output_dir=new", "--format=onnx"],
        ["--export_dir=missing"],
        ["--export_dir=there/file"],
        "Cannot read there/file: Not a directory.",
    ),
}
KINDS = ("help", "missing file", "combination")


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Returns the exit status and the output for each job and kind."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "there").touch()
    lines = {}
    for job, (words, missing, wrong, _) in CASES.items():
        more = (["--help"], missing, wrong)
        for kind, added in zip(KINDS, more, strict=True):
            lines[job, kind] = [job, *words, *added]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([*lines.values()])],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert {path.name for path in folder.iterdir()} == {"there"}
    return dict(zip(lines, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("job", JOBS)
def test_help_and_mistakes_do_not_wait_for_tensorflow(answers, job):
    assert job in CASES, f"Add command lines of {job} to CASES."
    status, text = answers[job, "help"]
    assert status == 0
    page = sys.modules[options_of(job).__module__].__doc__
    assert text.startswith(page.splitlines()[0])
    names = re.findall(r"(?m)^  --(?:\[no\])?(\w+):", text)
    assert sorted(names) == sorted(flags_of(job))
    for kind, said in zip(KINDS[1:], ("missing", CASES[job][3]), strict=True):
        status, text = answers[job, kind]
        assert (status, text.count("\n")) == (1, 1), text
        assert text.startswith(f"{job}: error: ")
        assert said in text


def flags_of(job):
    return declared(options_of(job))


def test_choices_are_those_of_the_code_that_needs_tensorflow():
    for job, name, known in (
        ("features", "pooling", features.POOLINGS),
        ("features", "output_format", features.WRITERS),
        ("embeddings", "pooling", embedding.POOLINGS),
        ("pretraining", "objective", pretraining.OBJECTIVES),
        ("classifier", "search", trials.SEARCHES),
    ):
        _, option = flags_of(job)[name]
        assert {*option.choices} == {*known}
