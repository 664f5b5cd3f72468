"""Damaged files: what is sound is read, all of it and nothing else."""

import gzip
import logging
import random

import pytest

from bert_tf import files
from bert_tf.data import record_files, records
from bert_tf.errors import InputError

RECORDS = [bytes([n]) * (5 * n + 3) for n in range(9)]
# Where each begins, and where the last one ends.
STARTS = [0]
for record in RECORDS:
    STARTS.append(STARTS[-1] + 16 + len(record))


@pytest.fixture
def damaged(tmp_path):
    """Writes a file of what a function makes of the bytes of RECORDS."""

    def write(change=bytes, name="a.tfrecord"):
        path = tmp_path / name
        data = bytearray(records.frame(RECORDS))
        path.write_bytes(change(data))
        return str(path)

    return write


def flip(*places):
    def change(data):
        for place in places:
            data[place] ^= 4
        return data

    return change


def readable(path):
    """What TensorFlow reads of the stretches, and the faults."""
    stretches, faults = record_files.scan(path)
    compression = "GZIP" if path.endswith(".gz") else ""
    found = []
    for offset, count in stretches:
        dataset = record_files.read(path, compression, offset).take(count)
        some = list(dataset.as_numpy_iterator())
        assert len(some) == count
        found += some
    return found, faults


def numbers(path):
    """The numbers in RECORDS of what the stretches hold; by their bytes."""
    stretches, _ = record_files.scan(path)
    data = files.open_read(path).read()
    found = []
    for offset, count in stretches:
        for _ in range(count):
            record = RECORDS[data[offset + records.HEADER_SIZE]]
            framed = records.frame([record])
            assert data[offset : offset + len(framed)] == framed
            found.append(record[0])
            offset += len(framed)
    return found


def without(*numbers):
    return [r for n, r in enumerate(RECORDS) if n not in numbers]


@pytest.mark.parametrize("name", ["a.tfrecord", "a.tfrecord.gz"])
def test_a_sound_file_is_one_stretch(damaged, name):
    pack = gzip.compress if name.endswith(".gz") else bytes
    path = damaged(pack, name)
    assert record_files.scan(path) == (((0, 9),), ())
    assert readable(path) == (RECORDS, ())


def test_an_empty_file_has_none(damaged):
    assert record_files.scan(damaged(lambda data: b"")) == ((), ())


def test_whatever_byte_is_flipped_one_record_is_lost():
    """Be it of the length, of a checksum, or of the data."""
    whole = bytearray(records.frame(RECORDS))
    for place in range(len(whole)):
        path = "ram://salvage/flipped"
        with files.atomic_writer(path) as file:
            file.write(flip(place)(bytearray(whole)))
        stretches, faults = record_files.scan(path)
        number = max(n for n in range(9) if STARTS[n] <= place)
        before, after = (0, number), (STARTS[number + 1], 8 - number)
        assert stretches == tuple(s for s in (before, after) if s[1])
        assert faults == (
            f"{16 + len(RECORDS[number])} bytes from record {number} (from 0) "
            f"on, at byte {STARTS[number]}",
        )


def test_what_is_cut_off_ends_the_file(damaged):
    for cut in range(1, STARTS[-1], 3):
        number = max(n for n in range(9) if STARTS[n] <= cut)
        path = damaged(lambda data, cut=cut: data[:cut])
        if number == 0:
            with pytest.raises(InputError, match=r"a\.tfrecord"):
                record_files.scan(path)
            continue
        stretches, faults = record_files.scan(path)
        assert stretches == ((0, number),)
        assert len(faults) == (cut != STARTS[number])


def cut_out(data):
    """From within record 2 to within record 4."""
    return data[: STARTS[2] + 14] + data[STARTS[4] + 3 :]


def put_in(data):
    """Before record 3, what looks almost like records."""
    mad = records.header(5) + b"x" * 40 + records.header(10**9)
    return data[: STARTS[3]] + mad + data[STARTS[3] :]


def zero(data):
    """Much of record 4, all of 5 and the length of 6: of a disk's blocks."""
    first, last = STARTS[4] + 9, STARTS[6] + 5
    return data[:first] + bytes(last - first) + data[last:]


def zero_the_end(data):
    return data[: STARTS[7] + 3] + bytes(3 << 20)


@pytest.mark.parametrize(
    ("change", "lost", "num_faults"),
    [
        (flip(STARTS[2] + 13, STARTS[3] + 2, STARTS[6]), (2, 3, 6), 2),
        (flip(0, STARTS[-1] - 1), (0, 8), 2),
        (cut_out, (2, 3, 4), 1),
        (put_in, (), 1),
        (zero, (4, 5, 6), 1),
        (zero_the_end, (7, 8), 1),
    ],
)
def test_damage_of_many_kinds(damaged, change, lost, num_faults):
    found, faults = readable(damaged(change))
    assert found == without(*lost)
    assert len(faults) == num_faults


def test_a_place_over_the_end_of_a_block_is_found(damaged, monkeypatch):
    """However the file is cut into blocks while it is searched."""
    path = damaged(cut_out)
    for size in range(12, 60):
        monkeypatch.setattr(record_files, "_BLOCK_SIZE", size)
        assert numbers(path) == [0, 1, 5, 6, 7, 8]


def test_damage_at_random(damaged):
    rng = random.Random(7)
    for _ in range(100):
        places = rng.sample(range(STARTS[-1]), rng.randrange(1, 4))
        hit = {max(n for n in range(9) if STARTS[n] <= p) for p in places}
        assert numbers(damaged(flip(*places))) == [
            n for n in range(9) if n not in hit
        ]


@pytest.mark.parametrize("cut", [0.5, 0.9])
def test_of_a_compressed_file_there_is_its_beginning(tmp_path, cut):
    rng = random.Random(3)
    many = [rng.randbytes(1000) for _ in range(900)]
    packed = gzip.compress(records.frame(many))
    path = tmp_path / "a.tfrecord.gz"
    place = int(len(packed) * cut)
    for data in (packed[:place], flip(place)(bytearray(packed))):
        path.write_bytes(data)
        found, faults = readable(str(path))
        assert found == many[: len(found)]
        assert 900 * cut - 300 < len(found) <= 900 * cut
        assert len(faults) == 1
        assert str(path) in faults[0]


@pytest.mark.parametrize("name", ["notes.txt", "notes.txt.gz"])
def test_another_kind_of_file_is_an_error(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"These are no records at all.\n" * 9)
    with pytest.raises(InputError, match=r"notes\.txt"):
        record_files.scan(str(path))


def test_several_files_are_told_of_and_counted(damaged, caplog):
    caplog.set_level(logging.WARNING)
    whole = damaged()
    hurt = damaged(flip(STARTS[3] + 13, STARTS[7]), "hurt")
    found = record_files.salvage([whole, hurt])
    assert found.results == {"skipped_records": found.num_faults}
    assert found.num_faults == 2
    assert found.stretches[whole] == ((0, 9),)
    assert found.stretches[hurt] == ((0, 3), (STARTS[4], 3), (STARTS[8], 1))
    assert caplog.messages == [
        f"{hurt} is read without its 2 damaged place(s); the first: 34 bytes "
        f"from record 3 (from 0) on, at byte {STARTS[3]}"
    ]


def test_nothing_is_told_where_nobody_looked():
    assert record_files.Salvage().results == {}
    assert record_files.Salvage({}, 0).results == {"skipped_records": 0}


def test_the_way_out_is_told_of_damage_alone(damaged):
    path = damaged(flip(STARTS[3] + 13))
    with (
        pytest.raises(InputError, match=r"again\. Or pass --skip_corrupt_rec"),
        record_files.way_out_told(),
    ):
        records.verify(path)
    with pytest.raises(InputError, match=r"mine$"), record_files.way_out_told():
        raise InputError("mine")
