"""What every engine of data creation has to do. Not a test.

In both functions, `create` is called with the options of a job.
"""

import dataclasses
import os
import re
import shutil

import pytest

from bert_tf.corpus import creation
from bert_tf.errors import InputError
from tests.text_corpora import files_in

UNUSABLE = pytest.mark.parametrize(
    ("text", "outputs", "message"),
    [
        (b"wa\nwb\n\nwc\xff\n", "out/0", r"^a\.txt:4: byte 0xff"),
        (b"wa\nwb\n", "out/0", r"1 document\(s\), 2 sentence\(s\)\. Put"),
        (b"wa\nwb\n\nwa\n", "out/0,1,2,3,4,5,6", "instances for 7 files"),
        # A path that cannot be written fails before the text is read.
        (b"\xff", "out/0,a.txt/b", r"Cannot write .*a.txt/b"),
    ],
)


def assert_equal_to_one_machine(create, config, sizes, folder, caplog):
    """Compares the files in `folder`, the manifests and the logged samples."""
    caplog.set_level("INFO")
    results = []
    for function in (lambda job: creation.create(job, 1, sizes), create):
        caplog.clear()
        shutil.rmtree(folder, ignore_errors=True)
        manifest = function(config)
        samples = [
            record.getMessage()
            for record in caplog.records
            if record.funcName == "log_samples"
        ]
        assert len(samples) == 20
        results.append((manifest, files_in(folder), samples))
        assert len(results[-1][1]) == 3
    assert results[0] == results[1]


def assert_existing_files_are_left(
    create, config, folder, text, outputs, message
):
    """Takes the parameters of UNUSABLE."""
    (folder / "a.txt").write_bytes(text)
    (folder / "out").mkdir()
    (folder / "out/0").write_bytes(b"old")
    before = files_in(folder)
    config = dataclasses.replace(
        config,
        input_file=f"{folder}/a.txt",
        output_file=",".join(f"{folder}/{x}" for x in outputs.split(",")),
        dupe_factor=1,
    )
    with pytest.raises(InputError) as raised:
        create(config)
    error = str(raised.value).replace(f"{folder}/", "")
    assert "\n" not in error
    assert re.search(message, error)
    assert files_in(folder) == before
    assert os.listdir(folder / "out") == ["0"]
