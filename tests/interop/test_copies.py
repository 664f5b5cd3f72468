import os

import pytest

from bert_tf import files
from bert_tf.errors import InputError
from bert_tf.interop.checkpoint import local_file


def test_a_local_file_stays_where_it_is(tmp_path):
    path = str(tmp_path / "a.keras")
    with local_file(path) as local:
        assert local == path


def test_of_a_remote_file_there_is_a_copy_for_a_while():
    path = "ram://copies/a.keras"
    with files.atomic_writer(path) as file:
        file.write(b"abc" * 99)
    with local_file(path) as local:
        assert local.endswith(".keras")
        with open(local, "rb") as copy:
            assert copy.read() == b"abc" * 99
    assert not os.path.exists(local)


def test_a_remote_file_that_is_not_there():
    with pytest.raises(InputError, match="ram://copies/none"):
        local_file("ram://copies/none").__enter__()
