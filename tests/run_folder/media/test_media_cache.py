"""Each event file is read once; after that, only appended data is read."""

from __future__ import annotations

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from hookpoint.run_folder.media import media_cache
from hookpoint.run_folder.media.media_cache import MediaCache
from hookpoint.run_folder.media.tensorboard_media import media_in


def write(path, *steps, mode="ab"):
    path.parent.mkdir(exist_ok=True)
    with path.open(mode) as file:
        writer = RecordWriter(file)
        for step in steps:
            image = Summary.Value(tag="a", image=Summary.Image(encoded_image_string=b"\x89PNG"))
            writer.write(Event(step=step, wall_time=1.0, summary=Summary(value=[image])).SerializeToString())


@pytest.fixture
def reads(monkeypatch):
    """The offset at which each read of an event file starts."""
    offsets = []

    def counted(file, path, max_bytes):
        offsets.append(file.tell())
        return media_in(file, path, max_bytes)

    monkeypatch.setattr(media_cache, "media_in", counted)
    return offsets


def test_only_appended_events_are_read(tmp_path, reads):
    cache, first = MediaCache(), tmp_path / "tensorboard" / "events.out.tfevents.1"
    assert cache.media_of(tmp_path) == []
    write(first, 1, 2)
    assert [one.step for one in cache.media_of(tmp_path)] == [1, 2]
    assert cache.media_of(tmp_path) == MediaCache().media_of(tmp_path)
    assert reads == [0, 0]  # the second read is by the new cache
    size = first.stat().st_size
    write(first, 3)
    write(tmp_path / "tensorboard" / "events.out.tfevents.2", 4)
    assert [one.step for one in cache.media_of(tmp_path)] == [1, 2, 3, 4]
    assert cache.media_of(tmp_path) == MediaCache().media_of(tmp_path)
    assert reads[2:4] == [size, 0]


def test_a_rewritten_file_is_read_again_and_a_deleted_file_is_dropped(tmp_path, reads):
    cache, path = MediaCache(), tmp_path / "tensorboard" / "events.out.tfevents.1"
    write(path, 1, 2)
    cache.media_of(tmp_path)
    write(path, 7, mode="wb")
    assert [one.step for one in cache.media_of(tmp_path)] == [7]
    path.unlink()
    assert cache.media_of(tmp_path) == []


def test_an_incomplete_event_is_read_once_it_is_complete(tmp_path):
    cache, path = MediaCache(), tmp_path / "tensorboard" / "events.out.tfevents.1"
    write(path, 1, 2)
    content = path.read_bytes()
    path.write_bytes(content[:-10])
    assert [one.step for one in cache.media_of(tmp_path)] == [1]
    with path.open("ab") as file:
        file.write(content[-10:])
    assert [one.step for one in cache.media_of(tmp_path)] == [1, 2]


def test_the_oldest_run_is_evicted(tmp_path, monkeypatch, reads):
    monkeypatch.setattr(media_cache, "MAX_RUNS", 1)
    cache = MediaCache()
    for name in ("a", "b", "a"):
        (tmp_path / name).mkdir(exist_ok=True)
        if not (tmp_path / name / "tensorboard").exists():
            write(tmp_path / name / "tensorboard" / "events.out.tfevents.1", 1)
        cache.media_of(tmp_path / name)
    assert reads == [0, 0, 0]
