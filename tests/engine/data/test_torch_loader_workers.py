from __future__ import annotations

import copy
import gc
import logging
import os
import re
import signal
import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from hookpoint import Every, Loop, Runner
from hookpoint.callbacks import ModelSaver
from hookpoint.core.errors import DataTimeout
from hookpoint.core.hang.process_state import GONE, state_of_process
from hookpoint.storage.workdir.find_checkpoint import newest_good

BAD = 7
DIED = (RuntimeError, OSError)  # torch reports that a worker is gone, or that its connection broke


class Samples(Dataset):
    """Sixteen samples; loading one of them calls `happens`."""

    def __init__(self, happens=None):
        self.happens = happens

    def __len__(self):
        return 16

    def __getitem__(self, index):
        if index == BAD and self.happens is not None:
            self.happens()
        return torch.full((2,), float(index)), torch.ones(1)


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def leave():
    os._exit(3)


def sleep_for_ever():
    time.sleep(600)


@pytest.fixture(autouse=True)
def workers_gone(monkeypatch):
    """End the workers of a loader that failed: torch's traceback keeps their iterator alive."""
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.2)  # then torch terminates them
    yield
    gc.collect()


class Reports(logging.Handler):
    """Call a function with each hang report."""

    def __init__(self, act):
        super().__init__(logging.WARNING)
        self.act, self.seen = act, []

    def emit(self, record):
        if "has waited" in record.getMessage():
            self.seen.append(record.getMessage())
            self.act(record.getMessage())


@pytest.fixture
def reported():
    """Return `reported(act)`, which passes later hang reports to `act`."""
    logger, handlers = logging.getLogger("hookpoint"), []

    def add(act):
        handlers.append(Reports(act))
        logger.addHandler(handlers[-1])
        return handlers[-1].seen

    yield add
    for handler in handlers:
        logger.removeHandler(handler)


def loader(happens, **options):
    return DataLoader(Samples(happens), batch_size=2, num_workers=2, multiprocessing_context="fork", **options)


def trained(data, **options):
    model = torch.nn.Linear(2, 1)
    runner = Runner(
        model,
        torch.optim.SGD(model.parameters(), lr=0.001),
        torch.nn.functional.mse_loss,
        extra_callbacks=[],
        monitors=[],
        **options,
    )
    return runner.fit(data, epochs=1)


def pid_in(report):
    return int(re.search(r"process (\d+)", report).group(1))


def test_a_stopped_worker_is_named_and_can_be_continued(reported):
    def resume(report):
        if "is stopped" in report:
            os.kill(pid_in(report), signal.SIGCONT)

    seen = reported(resume)
    run = trained(loader(stop), hang_report_seconds=0.2)
    assert run.step == 8
    (report,) = [one for one in seen if "is stopped" in one]
    assert re.search(r"Linear has waited \d+ s for data, at batch \d of epoch 1\.", report)
    assert re.search(r"DataLoader worker \d \(process \d+\) is stopped; it is loading this batch", report)
    assert re.search(r"continue  it with kill -CONT \d+", report)
    assert "end       such a wait with data_timeout_seconds=300" in report


def test_a_hanging_worker_reports_its_stack(reported):
    def end(report):
        if "sleep_for_ever" in report:
            os.kill(pid_in(report), signal.SIGKILL)

    seen = reported(end)
    with pytest.raises(DIED):
        trained(loader(sleep_for_ever), hang_report_seconds=0.2)
    assert re.search(r'File ".*test_torch_loader_workers.py", line \d+ in sleep_for_ever', seen[-1])


def test_a_timeout_ends_a_run_whose_worker_is_stopped():
    data = loader(stop, persistent_workers=True)
    with pytest.raises(DataTimeout, match=r"(?s)no data for .* at batch .*DataLoader worker \d .* is stopped") as raised:
        trained(data, data_timeout_seconds=0.5)
    while state_of_process(pid_in(str(raised.value))) != GONE:  # the exit would wait for a stopped worker
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("happens", "how"),
    [(die, r"was killed by SIGKILL \(possibly out of memory\)"), (leave, "exited with code 3")],
)
def test_the_error_names_a_dead_worker_and_its_pending_batches(happens, how):
    with pytest.raises(DIED) as raised:
        trained(loader(happens))
    note = raised.value.__notes__[-1]
    owed = rf"DataLoader worker 1 \(process \d+\) {how} before it sent batch ([13] and )?[35] of epoch 1"
    # torch's signal handler may raise anywhere, even between two batches.
    assert re.fullmatch(rf"{owed}|detected after batch [0-3] of epoch 1 was fetched", note)


def test_a_custom_loop_names_a_dead_worker():
    with pytest.raises(DIED) as raised, Loop(extra_callbacks=[], monitors=[]) as run:
        for _ in run.batches(loader(die)):
            pass
    assert re.search("DataLoader worker 1|detected after batch", raised.value.__notes__[-1])


def miss():
    raise LookupError("no such sample")


def test_an_error_in_a_worker_keeps_its_type_and_names_the_batch():
    said = r"(?s)^Caught LookupError in DataLoader worker process 1\..*: no such sample"
    with pytest.raises(LookupError, match=said) as raised:
        trained(loader(miss))
    assert raised.value.__notes__[-1] == "in the loader, at batch 3 of epoch 1"


def test_an_error_in_a_loader_without_workers_names_the_batch():
    with pytest.raises(LookupError) as raised:
        trained(DataLoader(Samples(miss), batch_size=2))
    assert raised.value.__notes__[-1] == "in the loader, at batch 3 of epoch 1"


@pytest.mark.parametrize("happens", [die, miss, stop])
def test_a_run_resumes_after_a_worker_fails(happens, tmp_path, capsys):
    def saved():
        return {"callbacks": [ModelSaver().when(Every(steps=1))], "workdir": tmp_path}

    with pytest.raises((*DIED, LookupError, DataTimeout)):
        # A worker loads one batch at a time: the bad one after the first batch is done and saved.
        data = loader(happens, prefetch_factor=1)
        trained(data, data_timeout_seconds=0.5 if happens is stop else None, **saved())
    before = newest_good(tmp_path).manifest.step
    assert trained(loader(None), **saved()).step == 8
    assert f"(epoch 1, step {before})" in capsys.readouterr().err


def mark(number):
    torch.manual_seed(number)
    get_worker_info().dataset.happens = Fails(number)


class Fails:
    def __init__(self, number):
        self.number = number

    def __call__(self):
        raise KeyError(f"worker {self.number} was prepared")


def test_the_users_worker_init_fn_is_called_and_the_loader_can_be_copied():
    data = loader(None, worker_init_fn=mark)
    with pytest.raises(KeyError, match="worker 1 was prepared"):
        trained(data)
    again = copy.deepcopy(data)
    with pytest.raises(KeyError, match="worker 1 was prepared"):
        trained(again)


@pytest.mark.slow
def test_a_spawned_worker_reports_its_stack(reported):
    def end(report):
        if "sleep_for_ever" in report:
            os.kill(pid_in(report), signal.SIGKILL)

    seen = reported(end)
    data = DataLoader(Samples(sleep_for_ever), batch_size=2, num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(DIED):
        trained(data, hang_report_seconds=0.5)
    assert "sleep_for_ever" in seen[-1]
