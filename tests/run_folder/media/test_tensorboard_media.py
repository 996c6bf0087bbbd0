"""Images and histograms are read from event files, whatever else the files contain."""

from __future__ import annotations

import os

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from hookpoint.run_folder.media.media_cache import MediaCache
from hookpoint.run_folder.media.tensorboard_media import PNG, histogram_of, image_of


@pytest.fixture
def folder(tmp_path):
    """A run with two images and a histogram among scalars."""
    writer = EventFileWriter(str(tmp_path / "tensorboard"))
    histogram = HistogramProto(min=0.0, max=2.0, num=3.0, bucket_limit=[1.0, 2.0], bucket=[1.0, 2.0])
    values = [
        (1, Summary.Value(tag="loss", simple_value=0.5)),
        (1, Summary.Value(tag="input", image=Summary.Image(encoded_image_string=PNG + b"one"))),
        (2, Summary.Value(tag="weights", histo=histogram)),
        (3, Summary.Value(tag="input", image=Summary.Image(encoded_image_string=PNG + b"two"))),
        (3, Summary.Value(tag="evil", image=Summary.Image(encoded_image_string=b"<svg onload=alert(1)>"))),
    ]
    for step, value in values:
        writer.add_event(Event(step=step, wall_time=float(step), summary=Summary(value=[value])))
    writer.close()
    return tmp_path


def test_images_and_histograms_are_read(folder):
    found = MediaCache().media_of(folder)
    assert [(one.kind, one.name, one.step) for one in found] == [
        ("image", "input", 1),
        ("histogram", "weights", 2),
        ("image", "input", 3),
        ("image", "evil", 3),
    ]
    assert [image_of(one) for one in found if one.name == "input"] == [PNG + b"one", PNG + b"two"]
    assert histogram_of(found[1]) == {
        "step": 2,
        "low": 0.0,
        "high": 2.0,
        "count": 3.0,
        "limits": [1.0, 2.0],
        "counts": [1.0, 2.0],
    }


def test_image_of_returns_none_if_the_data_is_not_png(folder):
    assert image_of(MediaCache().media_of(folder)[-1]) is None


BOGUS = b"\x04\0\0\0\0\0\0\0abcd" + b"\xff" * 4 + b"efgh"  # a record whose data is no event


@pytest.mark.parametrize(
    ("cut_bytes", "damage", "number"),
    [(30, b"", 3), (30, b"\xff" * 20, 3), (0, BOGUS, 4), (0, BOGUS[:14], 4), (0, b"\xff" * 30, 4)],
)
def test_a_damaged_end_of_a_file_is_skipped(folder, cut_bytes, damage, number):
    intact = MediaCache().media_of(folder)
    (path,) = (folder / "tensorboard").iterdir()
    os.truncate(path, path.stat().st_size - cut_bytes)
    with path.open("ab") as file:
        file.write(damage)
    assert MediaCache().media_of(folder) == intact[:number]


def test_a_run_without_event_files_has_no_media(tmp_path):
    assert MediaCache().media_of(tmp_path) == []
