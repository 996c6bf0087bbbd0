from __future__ import annotations

import io
import os
import stat
import subprocess
import sys
import threading

import numpy
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.node_def_pb2 import NodeDef
from tensorboard.summary.writer import event_file_writer
from torch.utils.tensorboard import SummaryWriter

from hookpoint import Loop as WholeLoop
from hookpoint.callbacks import ModelSaver
from hookpoint.core.loop.loop import Loop
from hookpoint.monitors import TFEventWriter, tf_event_writer


def read(folder):
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0, "histograms": 0, "tensors": 0})
    return events.Reload()


def scalars(folder):
    events = read(folder)
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def send(tmp_path, put, **given):
    with Loop([TFEventWriter(**given)], workdir=tmp_path) as run:
        put(run)
    return read(tmp_path / "tensorboard")


def test_scalars_are_curves_over_steps(tmp_path):
    with Loop([TFEventWriter()], workdir=tmp_path, log_every=2) as run:
        for epoch in run.epochs(2):
            for batch in run.batches(range(4)):
                run.log(loss=torch.tensor(float(batch)))
            for _ in run.batches(range(2), mode="val"):
                run.log(loss=epoch)
            run.put_scalar("error", epoch / 8)
            run.log(learning_rate=0.5)
    assert scalars(tmp_path / "tensorboard") == {
        "loss": [(2, 0.5), (4, 2.5), (6, 0.5), (8, 2.5)],
        "epoch/loss": [(4, 1.5), (8, 1.5)],
        "val_loss": [(4, 1.0), (8, 2.0)],
        "error": [(4, 0.125), (8, 0.25)],
        "learning_rate": [(4, 0.5), (8, 0.5)],
    }


@pytest.mark.parametrize("subfolder", ["..", "a/../../b", "/tmp/tensorboard", "a\0b", None, 3])
def test_a_folder_outside_the_workdir_raises(subfolder):
    with pytest.raises(ValueError, match="TFEventWriter: subfolder must be a folder inside the workdir"):
        TFEventWriter(subfolder)


@pytest.mark.parametrize("subfolder", ["checkpoints", "checkpoints/tensorboard", "./run.json"])
def test_the_name_of_another_file_of_the_run_raises(subfolder):
    with pytest.raises(ValueError, match=f"subfolder='{subfolder}' is the name of one of the run's own files"):
        TFEventWriter(subfolder)


def test_a_folder_may_be_nested(tmp_path):
    with Loop([TFEventWriter("logs/tensorboard")], workdir=tmp_path) as run:
        run.put_scalar("error", 0.5)
    assert scalars(tmp_path / "logs/tensorboard") == {"error": [(0, 0.5)]}


def test_event_times_are_the_times_of_logging(tmp_path):
    events = send(tmp_path, lambda run: run.log(x=1.0))
    assert abs(events.Scalars("x")[0].wall_time - os.stat(tmp_path / "tensorboard").st_mtime) < 60


def test_non_finite_numbers_are_written(tmp_path):
    events = send(tmp_path, lambda run: run.log(a=float("nan"), b=float("inf")))
    assert numpy.isnan(events.Scalars("a")[0].value)
    assert events.Scalars("b")[0].value == float("inf")


@pytest.mark.parametrize(
    ("image", "colours"),
    [
        (numpy.full((4, 6, 3), 128, dtype=numpy.uint8), (128, 128, 128)),
        (numpy.full((4, 6, 3), 128), (128, 128, 128)),
        (numpy.full((4, 6, 3), 128.0), (128, 128, 128)),
        (numpy.full((4, 6, 3), 0.5), (127, 127, 127)),
        (numpy.full((4, 6, 3), 300.0), (255, 255, 255)),
        (numpy.full((4, 6), 128, dtype=numpy.uint8), (128, 128, 128)),
        (numpy.full((4, 6, 1), 128, dtype=numpy.uint8), (128, 128, 128)),
        (torch.full((4, 6, 3), 0.5), (127, 127, 127)),
        (torch.full((4, 6, 3), 0.5, dtype=torch.bfloat16, requires_grad=True), (127, 127, 127)),
    ],
    ids=["bytes", "integers", "floats to 255", "floats to 1", "too bright", "grey", "one channel", "tensor", "bfloat16"],
)
def test_images_are_written(tmp_path, image, colours):
    (event,) = send(tmp_path, lambda run: run.put_image("sample", image)).Images("sample")
    picture = Image.open(io.BytesIO(event.encoded_image_string)).convert("RGB")
    assert picture.size == (6, 4)
    assert picture.getpixel((0, 0)) == colours


def test_a_batch_of_images_is_one_picture(tmp_path):
    images = numpy.zeros((4, 5, 5, 3), dtype=numpy.uint8)
    (event,) = send(tmp_path, lambda run: run.put_image("samples", images)).Images("samples")
    assert event.width * event.height == 4 * 5 * 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_histograms_are_written(tmp_path, dtype):
    values = torch.arange(100).to(dtype)
    (event,) = send(tmp_path, lambda run: run.put_histogram("weights", values)).Histograms("weights")
    assert (event.histogram_value.num, event.histogram_value.min, event.histogram_value.max) == (100, 0, 99)


def test_texts_are_written(tmp_path):
    events = send(tmp_path, lambda run: run.put_text("note", "hello <b>"))
    (event,) = events.Tensors("note/text_summary")
    assert event.tensor_proto.string_val == [b"hello <b>"]


def test_events_are_not_written(tmp_path):
    with Loop([TFEventWriter()], workdir=tmp_path) as run:
        run.put_event("stop", reason="enough")
    assert list(tmp_path.iterdir()) == []


def test_an_invalid_record_does_not_block_other_records(tmp_path, caplog):
    def put(run):
        run.log(before=1.0)
        run.put_image("bad", numpy.zeros(3))
        run.log(after=1.0)

    events = send(tmp_path, put)
    assert set(events.Tags()["scalars"]) == {"before", "after"}
    assert "image 'bad' has shape (3,); expected height x width x channels, or a batch of these." in caplog.text


def test_the_folder_may_have_another_name(tmp_path):
    with Loop([TFEventWriter("tb")], workdir=tmp_path) as run:
        run.log(x=1.0)
    assert scalars(tmp_path / "tb") == {"x": [(0, 1.0)]}


def test_a_new_workdir_is_private(tmp_path):
    send(tmp_path / "mine", lambda run: run.log(x=1.0))
    assert stat.S_IMODE(os.stat(tmp_path / "mine").st_mode) == 0o700


def test_without_a_workdir_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Loop([TFEventWriter()]) as run:
        run.log(x=1.0)
    assert list(tmp_path.iterdir()) == []


def test_a_validation_outside_a_run_is_not_written(tmp_path):
    with Loop([TFEventWriter()], workdir=tmp_path, run_points=False) as run:
        for _ in run.batches(range(2), mode="val"):
            run.log(loss=1.0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        (["tensorboard"], "TFEventWriter writes nothing without tensorboard: pip install 'hookpoint[tensorboard]'"),
        (["torch"], "TFEventWriter writes nothing without torch: pip install 'hookpoint[torch]'"),
        (
            ["tensorboard", "torch"],
            "TFEventWriter writes nothing without tensorboard and torch: pip install 'hookpoint[tensorboard,torch]'",
        ),
    ],
    ids=lambda given: "" if isinstance(given, str) else "+".join(given),
)
def test_a_missing_package_is_named_once(tmp_path, monkeypatch, caplog, missing, message):
    monkeypatch.setattr(tf_event_writer, "_warned", set())
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    for _ in range(2):
        with Loop([TFEventWriter()], workdir=tmp_path, log_every=1) as run:
            for _ in run.batches(range(5)):
                run.log(x=1.0)
    assert caplog.messages == [message]
    assert list(tmp_path.iterdir()) == []


def test_there_is_no_warning_without_a_workdir(monkeypatch, caplog):
    monkeypatch.setattr(tf_event_writer, "_warned", set())
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with Loop([TFEventWriter()]) as run:
        run.log(x=1.0)
    assert caplog.messages == []


# Resuming


def resumed_at(step, state=None):
    """Return a writer for a run that resumes at `step`, with `state` if given."""

    class Resumes(TFEventWriter):
        def on_run_begin(self, run):
            run._clocks.step = step
            run.resuming = True
            super().on_run_begin(run)
            if state is not None:
                self.load_state_dict(state)

    return Resumes()


def write_losses(tmp_path, writer, steps, loss, save_at=None):
    """Log `loss` at each step, and as `after` after it; return the writer's state between the two at step `save_at`."""
    state = None
    with Loop([writer], workdir=tmp_path, log_every=1) as run:
        for _ in range(steps):
            for _ in run.batches([0]):
                run.log(loss=loss)
            if run.step == save_at:
                run.monitors.settle()
                state = writer.state_dict()
            run.put_scalar("after", loss)
    return state


def files(tmp_path):
    return sorted(path.name for path in (tmp_path / "tensorboard").iterdir())


def test_without_saved_sizes_values_after_the_checkpoints_step_are_hidden(tmp_path):
    write_losses(tmp_path, TFEventWriter(), 8, -1.0)
    write_losses(tmp_path, resumed_at(4), 4, 1.0)
    assert scalars(tmp_path / "tensorboard")["loss"] == [(step, -1.0 if step <= 4 else 1.0) for step in range(1, 9)]


def test_files_are_cut_to_their_saved_sizes_even_within_one_step(tmp_path):
    state = write_losses(tmp_path, TFEventWriter(), 6, -1.0, save_at=4)
    ((name, size),) = state["sizes"].items()
    assert size < (tmp_path / "tensorboard" / name).stat().st_size
    writer = resumed_at(4, state)
    with Loop([writer], workdir=tmp_path, log_every=1) as run:
        run.put_scalar("after", 1.0)  # logged again: the checkpoint is from before it
        for _ in range(2):
            for _ in run.batches([0]):
                run.log(loss=1.0)
            run.put_scalar("after", 1.0)
    found = scalars(tmp_path / "tensorboard")
    assert found["loss"] == [(step, -1.0 if step <= 4 else 1.0) for step in range(1, 7)]
    assert found["after"] == [(step, -1.0 if step < 4 else 1.0) for step in range(1, 7)]


def test_files_created_after_the_checkpoint_are_removed(tmp_path):
    state = write_losses(tmp_path, TFEventWriter(), 4, -1.0, save_at=2)
    known = files(tmp_path)
    write_losses(tmp_path, resumed_at(2, state), 1, -2.0)
    assert len(files(tmp_path)) == 2
    write_losses(tmp_path, resumed_at(2, state), 2, 3.0)
    assert len(files(tmp_path)) == 2
    assert known[0] in files(tmp_path)
    assert scalars(tmp_path / "tensorboard")["loss"] == [(1, -1.0), (2, -1.0), (3, 3.0), (4, 3.0)]


def test_a_checkpoint_from_before_the_first_record_removes_all_files(tmp_path):
    write_losses(tmp_path, TFEventWriter(), 3, -1.0)
    write_losses(tmp_path, resumed_at(0, {"sizes": {}}), 1, 1.0)
    assert scalars(tmp_path / "tensorboard")["loss"] == [(1, 1.0)]
    assert len(files(tmp_path)) == 1


def test_a_torn_record_is_cut(tmp_path):
    state = write_losses(tmp_path, TFEventWriter(), 2, -1.0, save_at=2)
    ((name, size),) = state["sizes"].items()
    path = tmp_path / "tensorboard" / name
    path.write_bytes(path.read_bytes()[: size + 7])
    write_losses(tmp_path, resumed_at(2, state), 1, 1.0)
    assert scalars(tmp_path / "tensorboard")["loss"] == [(1, -1.0), (2, -1.0), (3, 1.0)]


def test_a_file_shorter_than_its_saved_size_is_not_changed(tmp_path):
    write_losses(tmp_path, TFEventWriter(), 2, -1.0)
    (name,) = files(tmp_path)
    before = (tmp_path / "tensorboard" / name).read_bytes()
    write_losses(tmp_path, resumed_at(2, {"sizes": {name: 10**6}}), 1, 1.0)
    assert (tmp_path / "tensorboard" / name).read_bytes() == before


def test_files_of_another_folder_are_not_removed(tmp_path):
    write_losses(tmp_path, TFEventWriter(), 2, -1.0)
    known = files(tmp_path)
    write_losses(tmp_path, resumed_at(2, {"sizes": {"events.out.tfevents.1.elsewhere.1.0": 99}}), 1, 1.0)
    assert set(known) < set(files(tmp_path))


def test_files_of_other_writers_in_this_process_are_not_touched(tmp_path):
    state = write_losses(tmp_path, TFEventWriter(), 2, -1.0, save_at=1)
    other = SummaryWriter(str(tmp_path / "tensorboard"))
    other.add_scalar("theirs", 1.0, 1)
    (tmp_path / "tensorboard" / "notes.txt").write_text("mine")
    write_losses(tmp_path, resumed_at(1, state), 1, 1.0)
    other.add_scalar("theirs", 2.0, 1)
    other.close()
    assert scalars(tmp_path / "tensorboard")["theirs"] == [(1, 1.0), (1, 2.0)]
    assert "notes.txt" in files(tmp_path)


def test_a_resumed_writer_keeps_its_state_until_its_first_record(tmp_path):
    state = write_losses(tmp_path, TFEventWriter(), 4, -1.0, save_at=2)
    before = {path.name: path.read_bytes() for path in (tmp_path / "tensorboard").iterdir()}
    writer = resumed_at(2, state)
    with Loop([writer], workdir=tmp_path):
        assert writer.state_dict() == state
    assert {path.name: path.read_bytes() for path in (tmp_path / "tensorboard").iterdir()} == before


def test_without_a_workdir_there_is_no_state():
    writer = TFEventWriter()
    with Loop([writer]) as run:
        run.log(x=1.0)
        assert writer.state_dict() == {}


def test_a_failed_fsync_does_not_fail_the_checkpoint(tmp_path, monkeypatch, caplog):
    writer = TFEventWriter()
    with Loop([writer], workdir=tmp_path, log_every=1) as run:
        for _ in run.batches([0]):
            run.log(x=1.0)
        run.monitors.settle()
        with monkeypatch.context() as broken:
            broken.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError("the disk is on fire")))
            assert writer.state_dict() == {}
    assert caplog.messages == ["TensorBoard's files may not be on disk: the disk is on fire; a resumed run may lose values"]


def test_a_killed_run_keeps_every_value_that_was_drained(tmp_path):
    program = """
import os, sys
from hookpoint import Loop as WholeLoop
from hookpoint.callbacks import ModelSaver
from hookpoint.core.loop.loop import Loop
from hookpoint.monitors import TFEventWriter
with Loop([TFEventWriter()], workdir=sys.argv[1], log_every=1) as run:
    for batch in run.batches(range(100)):
        run.log(loss=batch)
        if batch == 50:
            run.monitors.drain(300)  # a busy machine may import tensorboard for longer than a run waits
            os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert done.returncode == -9
    assert scalars(tmp_path / "tensorboard") == {"loss": [(step, step - 1.0) for step in range(1, 51)]}


def test_a_resumed_writer_keeps_the_open_file_of_another_writer(tmp_path):
    def train(epochs):
        writers = [TFEventWriter(name="first"), TFEventWriter(name="second")]
        with WholeLoop([ModelSaver()], monitors=writers, extra_callbacks=[], workdir=tmp_path, log_every=1) as run:
            for _ in run.epochs(epochs):
                for _ in run.batches(range(2)):
                    run.log(loss=1.0)
        return sorted((tmp_path / "tensorboard").iterdir())

    before, after = train(1), train(2)
    assert (len(before), len(after)) == (2, 4)
    for file in set(after) - set(before):
        assert scalars(file)["loss"] == [(3, 1.0), (4, 1.0)]
    assert not tf_event_writer._in_use


def test_no_writer_or_thread_is_left_open(tmp_path):
    writer = TFEventWriter()
    for _ in range(2):
        with Loop([writer], workdir=tmp_path) as run:
            run.log(x=1.0)
        assert writer._writer is None
    assert [thread.name for thread in threading.enumerate() if "AsyncWriter" in type(thread).__name__] == []
    assert len(scalars(tmp_path / "tensorboard")["x"]) == 2


def test_histograms_leave_out_non_finite_values(tmp_path, caplog):
    def put(run):
        run.put_histogram("some", torch.tensor([1.0, torch.nan, 3.0, torch.inf]))
        for _ in range(5):
            run.put_histogram("none", torch.full((3,), torch.nan))
        run.log(x=1.0)

    events = send(tmp_path, put)
    (some,) = events.Histograms("some")
    assert (some.histogram_value.num, some.histogram_value.min, some.histogram_value.max) == (2, 1, 3)
    assert events.Tags()["histograms"] == ["some"]
    assert events.Tags()["scalars"] == ["x"]
    assert caplog.messages == []


def test_a_text_with_a_graph_is_also_written_as_a_graph(tmp_path):
    class Words(str):
        graph_def = GraphDef(node=[NodeDef(name="conv", op="Conv2d")]).SerializeToString()

    events = send(tmp_path, lambda run: run.put_text("model", Words("a small one")))
    assert [node.name for node in events.Graph().node] == ["conv"]
    assert events.Tensors("model/text_summary")[0].tensor_proto.string_val == [b"a small one"]


def test_many_resumes_within_a_second_keep_every_value(tmp_path, monkeypatch):
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(7))
    write_losses(tmp_path, TFEventWriter(), 1, 0.0)
    for step in range(1, 6):  # the numbers in file names reach two digits: 10 would sort before 9
        write_losses(tmp_path, resumed_at(step), 1, float(step))
    assert scalars(tmp_path / "tensorboard")["loss"] == [(step + 1, float(step)) for step in range(6)]


def test_a_file_from_the_future_delays_the_writer_only_briefly(tmp_path, monkeypatch):
    monkeypatch.setattr(tf_event_writer, "MAX_WAIT_SECONDS", 0.1)
    write_losses(tmp_path, TFEventWriter(), 2, 0.0)
    (written,) = (tmp_path / "tensorboard").iterdir()
    written.rename(written.with_name(written.name.replace(written.name.split(".")[3], "9999999999")))
    write_losses(tmp_path, resumed_at(2), 2, 1.0)
    assert sorted(scalars(tmp_path / "tensorboard")["loss"]) == [(1, 0.0), (2, 0.0), (3, 1.0), (4, 1.0)]
    assert len(files(tmp_path)) == 2
