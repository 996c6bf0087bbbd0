from __future__ import annotations

import sys
from types import SimpleNamespace

import pynvml
import pytest

from hookpoint.callbacks.system._gpus import open_gpus, visible
from hookpoint.core.errors import BadLoop


@pytest.fixture(autouse=True)
def all_are_visible(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


class Machine:
    """Replaces NVIDIA's library, because this machine may have no GPU."""

    NVMLError = pynvml.NVMLError

    def __init__(self, busy, *, fails=None):
        self.busy, self.fails, self.inits = busy, fails, 0

    def nvmlInit(self):  # noqa: N802
        self.inits += 1

    def nvmlShutdown(self):  # noqa: N802
        self.inits -= 1

    def nvmlDeviceGetCount(self):  # noqa: N802
        return len(self.busy)

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        return int(uuid.removeprefix("GPU-"))

    def nvmlDeviceGetUtilizationRates(self, handle):  # noqa: N802
        if self.fails:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(gpu=self.busy[handle])


@pytest.fixture
def machine(monkeypatch):
    def make(*busy, **given):
        machine = Machine(busy, **given)
        monkeypatch.setitem(sys.modules, "pynvml", machine)
        monkeypatch.delitem(sys.modules, "torch", raising=False)  # torch would report that there is no GPU
        return machine

    return make


@pytest.mark.parametrize(
    ("setting", "count", "seen"),
    [
        (None, 2, [0, 1]),
        ("", 2, []),
        ("1", 2, [1]),
        (" 1 , 0", 2, [1, 0]),
        ("0,7,1", 2, [0]),
        ("-1", 2, []),
        ("0,-1,1", 2, [0]),
        ("GPU-8932f937,MIG-1", 2, ["GPU-8932f937", "MIG-1"]),
        ("nonsense", 2, []),
    ],
)
def test_visible_devices_follow_the_rules_of_cuda(setting, count, seen):
    assert visible(setting, count) == seen


def test_by_default_all_gpus_are_read(machine):
    machine(10, 20, 30)
    gpus = open_gpus("Mine", None)
    assert gpus.utilization() == {0: 10.0, 1: 20.0, 2: 30.0}


def test_gpus_are_numbered_as_in_this_process(machine, monkeypatch):
    library = machine(10, 20, 30)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-2,0")
    assert open_gpus("Mine", None).utilization() == {0: 30.0, 1: 10.0}
    assert open_gpus("Mine", [1]).utilization() == {1: 10.0}
    assert library.inits == 2


def test_torch_determines_the_numbers_if_it_uses_the_gpus(machine, monkeypatch):
    machine(10, 20, 30)
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 2,
        get_device_properties=lambda number: SimpleNamespace(uuid=[2, 1][number]),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert open_gpus("Mine", None).utilization() == {0: 30.0, 1: 20.0}


def test_close_shuts_the_library_down(machine):
    library = machine(10)
    open_gpus("Mine", None).close()
    assert library.inits == 0


def test_a_gpu_that_does_not_exist_raises(machine):
    library = machine(10, 20)
    with pytest.raises(BadLoop, match=r"Mine: devices=\(5,\), but this process sees 2 GPUs.\n  give      numbers below 2"):
        open_gpus("Mine", (5,))
    assert library.inits == 0


def test_no_visible_gpu_is_reported_once_if_devices_are_requested(machine, monkeypatch, caplog):
    library = machine(10)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert open_gpus("Mine", None) is None
    assert caplog.messages == []  # no devices were requested
    for _ in range(2):
        assert open_gpus("Mine", (0,)) is None
    assert caplog.messages == ["Mine does nothing: no GPU is visible to this process"]
    assert library.inits == 0


def test_gpus_that_cannot_be_queried_are_reported(machine, caplog):
    library = machine(10, fails=True)
    assert open_gpus("Mine", None) is None
    assert caplog.messages == ["Mine does nothing: the GPUs cannot be queried (Not Supported)"]
    assert library.inits == 0


def test_without_the_library_a_warning_is_logged_once(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    for _ in range(2):
        assert open_gpus("Mine", None) is None
    assert caplog.messages == ["Mine does nothing without nvidia-ml-py: pip install 'hookpoint[system]'"]


def test_without_a_driver_a_warning_is_logged_only_if_devices_are_requested(caplog):
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        pass
    else:
        pytest.skip("this machine has a GPU")
    assert open_gpus("Mine", None) is None
    assert caplog.messages == []
    for _ in range(2):
        assert open_gpus("Mine", (0,)) is None
    assert caplog.messages == ["Mine does nothing: no GPU found (NVML Shared Library Not Found)"]
