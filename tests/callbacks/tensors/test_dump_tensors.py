from __future__ import annotations

import io
import subprocess
import sys
import zipfile

import numpy
import pytest
import torch

from hookpoint import Callback, Every, Loop, Runner
from hookpoint.callbacks import DumpTensors, ModelSaver
from hookpoint.callbacks.tensors.dump_tensors import archive, archive_key, archive_keys
from hookpoint.core.errors import BadLoop, CompileError


def dumps(workdir):
    """Return the contents of all files by name."""
    found = {}
    for path in (workdir / "tensor-dumps").iterdir():
        with numpy.load(path, allow_pickle=False) as file:
            found[path.name] = {name: file[name] for name in file.files}
    return found


def names(workdir):
    return sorted(path.name for path in (workdir / "tensor-dumps").iterdir())


def content(workdir):
    return {path.name: path.read_bytes() for path in (workdir / "tensor-dumps").iterdir()}


def data(batches=4):
    numbers = torch.Generator().manual_seed(0)
    return [(torch.rand(4, 2, generator=numbers), torch.rand(4, 1, generator=numbers)) for _ in range(batches)]


def runner(workdir, *callbacks, **given):
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    given = {"workdir": workdir, "extra_callbacks": [], "monitors": [], "device": "cpu", **given}
    return Runner(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.MSELoss(), callbacks=callbacks, **given)


def test_each_step_writes_a_file(tmp_path):
    model = runner(tmp_path, DumpTensors(["loss", "batch/0", "weight", "weight.grad"])).fit(data(), epochs=1).model
    found = dumps(tmp_path)
    assert sorted(found) == [f"DumpTensor-{step}.npz" for step in range(1, 5)]
    for (inputs, _), arrays in zip(data(), (found[name] for name in sorted(found)), strict=True):
        assert set(arrays) == {"loss", "batch/0", "weight", "weight.grad"}
        assert numpy.array_equal(arrays["batch/0"], inputs.numpy())
    assert numpy.array_equal(found["DumpTensor-4.npz"]["weight"], model.weight.detach().numpy())
    moved = found["DumpTensor-2.npz"]["weight"] - 0.1 * found["DumpTensor-3.npz"]["weight.grad"]
    assert moved == pytest.approx(found["DumpTensor-3.npz"]["weight"])


def test_a_schedule_decides_when_to_write(tmp_path):
    runner(tmp_path, DumpTensors("batch/1").when(Every(steps=3) | Every(epochs=1))).fit(data(), epochs=2)
    assert names(tmp_path) == ["DumpTensor-3.npz", "DumpTensor-4.npz", "DumpTensor-6.npz", "DumpTensor-8.npz"]
    assert numpy.array_equal(dumps(tmp_path)["DumpTensor-8.npz"]["batch/1"], data()[-1][1].numpy())


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_tensors_are_written(precision, tmp_path):
    runner(tmp_path, DumpTensors(["outputs", "weight.grad"]), precision=precision).fit(data(), epochs=1)
    found = dumps(tmp_path)["DumpTensor-1.npz"]
    assert found["outputs"].dtype == {"bf16": "float32", "fp16": "float16"}[precision]
    assert found["weight.grad"].dtype == "float32"


def test_arrays_and_numbers_of_your_own_loop_are_written(tmp_path):
    buffer = numpy.zeros(2)
    with Loop([DumpTensors({"file": "outputs", "n:1": "batch"})], workdir=tmp_path, extra_callbacks=[], monitors=[]) as run:
        for batch in run.batches([1, 2]):
            buffer[:] = batch
            run.outputs = buffer
    assert {name: {key: array.tolist() for key, array in arrays.items()} for name, arrays in dumps(tmp_path).items()} == {
        "DumpTensor-1.npz": {"file": [1, 1], "n_1": 1},
        "DumpTensor-2.npz": {"file": [2, 2], "n_1": 2},
    }


def test_files_are_complete_after_an_exception(cuts, cut_off, tmp_path):
    with pytest.raises(cut_off):
        runner(tmp_path, DumpTensors("loss"), cuts(3)).fit(data(), epochs=1)
    assert names(tmp_path) == ["DumpTensor-1.npz", "DumpTensor-2.npz", "DumpTensor-3.npz"]


def test_a_resumed_run_writes_the_same_files(cuts, cut_off, tmp_path):
    def callbacks():
        return [DumpTensors(["loss", "weight", "weight.grad"]), ModelSaver().when(Every(steps=3))]

    runner(tmp_path / "whole", *callbacks()).fit(data(), epochs=2)
    with pytest.raises(cut_off):
        runner(tmp_path / "cut", *callbacks(), cuts(5)).fit(data(), epochs=2)
    folder = tmp_path / "cut" / "tensor-dumps"
    (folder / "DumpTensor-99.npz").write_bytes(b"of a time that is undone")
    (folder / "DumpTensor-5.npz").write_bytes(b"so is this")
    (folder / "mine-99.npz").write_bytes(b"mine")
    runner(tmp_path / "cut", *callbacks()).fit(data(), epochs=2)
    found = content(tmp_path / "cut")
    assert found.pop("mine-99.npz") == b"mine"
    assert found == content(tmp_path / "whole")
    assert len(found) == 8


def test_a_checkpoint_waits_for_earlier_files(tmp_path):
    seen = []

    class Looks(Callback):
        def on_save(self, run):
            seen.append((run.step, names(tmp_path)))

    saver = ModelSaver(async_save=False).when(Every(steps=2))
    runner(tmp_path, DumpTensors("loss"), saver, Looks()).fit(data(), epochs=1)
    assert seen[0] == (2, ["DumpTensor-1.npz", "DumpTensor-2.npz"])


def test_a_new_run_moves_the_files_of_the_previous_run(tmp_path):
    for _ in range(2):
        runner(tmp_path, DumpTensors("loss"), ModelSaver(), resume="never").fit(data(), epochs=1)
    assert len(names(tmp_path)) == 4
    assert len(names(tmp_path / "previous" / "001")) == 4


def test_a_callback_can_be_reused(tmp_path):
    callback = DumpTensors("loss")
    for folder in ("one", "two"):
        runner(tmp_path / folder, callback).fit(data(), epochs=1)
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_other_ranks_write_their_own_files(tmp_path):
    callback = DumpTensors("batch", ranks="all")
    with Loop([callback], workdir=tmp_path, extra_callbacks=[], monitors=[]) as run:
        run.rank = 1
        for _ in run.batches([1]):
            pass
    assert names(tmp_path) == ["DumpTensor-1-rank1.npz"]


def test_two_callbacks_with_the_same_prefix_raise(tmp_path):
    with pytest.raises(CompileError, match=r"both write DumpTensor-\.\.\. files"):
        runner(tmp_path, DumpTensors("loss"), DumpTensors("weight")).fit(data(), epochs=1)
    runner(tmp_path, DumpTensors("loss"), DumpTensors("weight", prefix="weights").when(Every(epochs=1))).fit(data(), epochs=1)
    assert names(tmp_path)[-2:] == ["DumpTensor-4.npz", "weights-4.npz"]


def test_a_workdir_is_required():
    with pytest.raises(BadLoop, match="DumpTensors needs a workdir"):
        runner(None, DumpTensors("loss")).fit(data(), epochs=1)


def test_an_array_of_objects_ends_the_run(tmp_path):
    loop = Loop([DumpTensors("batch")], workdir=tmp_path, extra_callbacks=[], monitors=[])
    with pytest.raises(ValueError, match="allow_pickle"), loop as run:
        for _ in run.batches([numpy.array([{}], dtype=object)] * 3):
            pass


WITHOUT_NUMPY = """
import sys


class Hides:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "numpy":
            raise ImportError(name)


sys.meta_path.insert(0, Hides())

from hookpoint import Loop, callbacks as cb

names = ["batch"]
callbacks = [cb.DumpTensors(names), cb.TensorPrinter(names), cb.ProcessTensors(names, print), cb.SimpleMovingAverage(names, 2)]
with Loop(callbacks, workdir=sys.argv[1], extra_callbacks=[], monitors=[]) as run:
    for batch in run.batches([1, 2]):
        pass
print(run.monitors.get_history("batch/SMA"))
"""


def test_without_numpy_nothing_is_dumped_and_other_callbacks_work(tmp_path):
    done = subprocess.run([sys.executable, "-c", WITHOUT_NUMPY, tmp_path], capture_output=True, text=True, check=True)
    says = ["DumpTensors does nothing without numpy: pip install 'hookpoint[torch]'", "step 1: batch 1", "step 2: batch 2"]
    assert done.stderr.splitlines() == says
    assert done.stdout.splitlines() == ["1", "2", "[(2, 1.5)]"]
    assert not (tmp_path / "tensor-dumps").exists()


def test_numpy_reads_the_archive_without_pickle():
    arrays = {
        "file": numpy.arange(3),
        "a/b.c": numpy.zeros((2, 0), "float16"),
        "args": numpy.array(0.5),
        "x": numpy.array("word"),
    }
    with numpy.load(io.BytesIO(archive(arrays)), allow_pickle=False) as found:
        assert set(found.files) == set(arrays)
        for name, array in arrays.items():
            assert found[name].dtype == array.dtype
            assert numpy.array_equal(found[name], array)


def test_arrays_of_objects_raise():
    with pytest.raises(ValueError, match="allow_pickle"):
        archive({"x": numpy.array([{}], dtype=object)})


def test_equal_arrays_give_equal_bytes():
    assert archive({"x": numpy.ones(3)}) == archive({"x": numpy.ones(3)})


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("fc.weight.grad", "fc.weight.grad"),
        ("batch/0", "batch/0"),
        ("/etc/passwd", "_/etc/passwd"),
        ("../../up", "_/_/up"),
        ("a\\..\\b", "a_.._b"),
        ("c:x\n", "c_x_"),
        ("", "_"),
        ("größe", "gr__e"),
    ],
)
def test_keys_cannot_leave_the_folder(name, key, tmp_path):
    assert archive_key(name) == key
    zipfile.ZipFile(io.BytesIO(archive({key: numpy.ones(1)}))).extractall(tmp_path / "in")
    assert (tmp_path / "in" / f"{key}.npy").resolve().is_relative_to(tmp_path / "in")


def test_two_names_with_the_same_key_raise():
    with pytest.raises(ValueError, match="Dump: 'a:b' and 'a;b' would both be 'a_b' in the file"):
        archive_keys("Dump", ["a:b", "a;b"])
