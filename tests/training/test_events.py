"""Event files: what TensorBoard reads of them, and where they cannot go."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.training.hooks import EventFile


def read(folder):
    """(step, name, value) of all that is in a folder's event files."""
    return [
        (event.step, value.tag, float(tf.make_ndarray(value.tensor)))
        for path in tf.io.gfile.glob(f"{folder}/events.out.tfevents.*")
        for raw in tf.data.TFRecordDataset(path).as_numpy_iterator()
        for event in [tf.compat.v1.Event.FromString(raw)]
        for value in event.summary.value
    ]


@pytest.mark.parametrize("place", ["local", "ram://events"])
def test_numbers_are_there_as_soon_as_they_are_written(tmp_path, place):
    folder = str(tmp_path) if place == "local" else place
    file = EventFile(folder)
    file.write(3, {"loss": np.float32(0.5), "rate": 2})
    first = [(3, "loss", 0.5), (3, "rate", 2.0)]
    assert read(folder) == first
    file.write(4, {"loss": 0.25})
    file.close()
    assert read(folder) == [*first, (4, "loss", 0.25)]


def test_a_process_that_writes_none():
    file = EventFile(None)
    file.write(1, {"loss": 0.5})
    file.close()


def test_a_place_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").touch()
    folder = f"{tmp_path}/file/events"
    with pytest.raises(InputError) as error:
        EventFile(folder)
    said = str(error.value)
    assert said.startswith(f"Cannot write TensorBoard's events to {folder}: ")
    assert said.endswith("file is not a directory.")
    assert "\n" not in said
