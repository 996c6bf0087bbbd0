from __future__ import annotations

import pickle
import re
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from hookpoint import Callback, LambdaCallback, verify
from hookpoint.core.log import monitors
from hookpoint.core.log.monitor_queue import CAPACITY
from hookpoint.core.loop.loop import Loop


class Monitor(Callback):
    """Keep the records and the threads they arrive on; wait for `gate` before taking the first records."""

    def __init__(self, *, on_error=None, name=None, gate=None):
        super().__init__(name=name, on_error=on_error)
        self.records, self.threads = [], set()
        self.gate, self.is_waiting = gate, threading.Event()

    def on_records(self, records):
        self.is_waiting.set()
        if self.gate is not None:
            assert self.gate.wait(10)
        self.threads.add(threading.current_thread())
        self.records += records

    def of(self, kind):
        return [record.values for record in self.records if record.kind == kind]


class Failing(Callback):
    def __init__(self, **options):
        super().__init__(**options)
        self.calls = 0
        self.called = threading.Event()

    def on_records(self, records):
        self.calls += 1
        self.called.set()
        raise OSError("disk is full")


# Records and threads


def test_every_kind_of_record_arrives_with_its_clocks():
    monitor = Monitor()
    with Loop([monitor]) as run:
        for _ in run.epochs(1):
            for _ in run.batches("ab"):
                run.put_image("sample", [[0, 1]])
                run.put_histogram("weights", [1, 2, 3])
                run.put_text("words", "hello")
                run.put_event("found", size=3)
    kinds = ("image", "histogram", "text")
    assert [(one.kind, one.values, one.epoch, one.step) for one in monitor.records if one.kind in kinds] == [
        (kind, values, 1, step)
        for step in (0, 1)
        for kind, values in zip(kinds, [{"sample": [[0, 1]]}, {"weights": [1, 2, 3]}, {"words": "hello"}], strict=True)
    ]
    assert monitor.of("event")[:2] == [{"found": {"size": 3}}] * 2
    times = [record.time for record in monitor.records]
    assert times == sorted(times)


def test_each_monitor_gets_records_in_order_on_its_own_thread():
    first, second = Monitor(), Monitor()
    with Loop([first, second]) as run:
        for number in range(500):
            run.put_text("number", str(number))
    expected = [{"number": str(number)} for number in range(500)]
    assert first.of("text") == second.of("text") == expected
    threads = [*first.threads, *second.threads]
    assert len(threads) == 2
    assert threading.main_thread() not in threads


def test_a_monitor_thread_starts_on_demand_and_ends_with_the_run():
    before = set(threading.enumerate())
    with Loop([Monitor()]):
        assert set(threading.enumerate()) <= before  # a thread of an earlier test may just end
    monitor = Monitor()
    with Loop([monitor]) as run:
        run.log(x=1)
    (thread,) = monitor.threads
    thread.join(10)
    assert not thread.is_alive()


def test_a_monitor_has_all_records_at_on_run_end():
    class Closing(Monitor):
        def on_run_end(self):
            self.had = len(self.of("text"))

    monitor = Closing()
    last = LambdaCallback(on_run_end=lambda run: run.put_text("last", "words"))
    with Loop([monitor, last]) as run:
        run.put_text("first", "words")
    assert monitor.had == 2


def test_a_monitor_can_handle_other_points_and_get_the_run():
    class Both(Callback):
        def __init__(self):
            self.seen = []

        def on_epoch_end(self, run):
            run.put_text("epoch", str(run.epoch))

        def on_records(self, run, records):
            self.seen += [(run.name, record.values) for record in records if record.kind == "text"]

    both = Both()
    with Loop([both], name="mine") as run:
        for _ in run.epochs(2):
            pass
    assert both.seen == [("mine", {"epoch": "1"}), ("mine", {"epoch": "2"})]


def test_the_exception_of_a_failed_run_arrives_as_an_event():
    monitor = Monitor()
    with pytest.raises(ValueError, match="nan"), Loop([monitor]):
        raise ValueError("nan")
    assert monitor.of("event") == [{"exception": {"type": "ValueError", "text": "nan"}}]


# A slow monitor


def test_a_slow_monitor_delays_no_step_until_its_queue_is_full():
    gate = threading.Event()
    monitor = Monitor(gate=gate)
    with Loop([monitor]) as run:
        for number in range(CAPACITY):
            run.put_text("number", str(number))
        assert monitor.records == []
        gate.set()
    assert len(monitor.of("text")) == CAPACITY


def test_a_full_queue_waits_and_loses_nothing():
    gate = threading.Event()
    monitor = Monitor(gate=gate)
    with Loop([monitor]) as run:
        run.put_text("number", "0")
        assert monitor.is_waiting.wait(10)
        for number in range(1, CAPACITY + 1):
            run.put_text("number", str(number))
        threading.Timer(0.05, gate.set).start()
        run.put_text("number", str(CAPACITY + 1))  # there is no room for it before the gate opens
        assert gate.is_set()
    assert monitor.of("text") == [{"number": str(number)} for number in range(CAPACITY + 2)]


def test_a_full_queue_of_an_outside_monitor_drops_the_oldest_records(caplog):
    class Outside(Monitor):
        outside = True

    gate = threading.Event()
    monitor = Outside(gate=gate, name="server")
    with Loop([monitor]) as run:
        run.put_text("number", "0")
        assert monitor.is_waiting.wait(10)
        for number in range(1, CAPACITY + 4):
            run.put_text("number", str(number))
        gate.set()
    assert monitor.of("text") == [{"number": str(number)} for number in (0, *range(4, CAPACITY + 4))]
    assert "server was too slow: the oldest 3 records were dropped" in caplog.messages


def test_a_drain_that_times_out_logs_the_number_of_missing_records(caplog):
    gate = threading.Event()
    monitor = Monitor(gate=gate, name="disk")
    with Loop([monitor]) as run:
        for number in range(4):
            run.put_text("number", str(number))
        assert monitor.is_waiting.wait(10)
        run.monitors.drain(seconds=0.01)
        assert caplog.messages == ["disk was too slow: 4 records did not reach it within 0.01 s"]
        gate.set()
        run.monitors.drain()
        assert len(monitor.of("text")) == 4


# A blocked monitor


@pytest.fixture
def waits(monkeypatch):
    """Return `waits(seconds)`: set how long a run waits for a monitor; half a second is enough for a working monitor."""

    def set_seconds(seconds):
        monkeypatch.setattr(monitors, "DRAIN_SECONDS", seconds)
        monkeypatch.setattr(monitors, "LEAVE_SECONDS", min(seconds, 0.05), raising=False)
        monkeypatch.setattr(monitors, "END_SECONDS", seconds, raising=False)

    set_seconds(0.5)
    return set_seconds


class Blocked(Monitor):
    """Blocks at its first record until its gate opens, with a lock that its other methods take."""

    def __init__(self, **options):
        super().__init__(gate=threading.Event(), **options)
        self.lock, self.calls = threading.Lock(), []

    def on_records(self, records):
        with self.lock:
            self.is_waiting.set()
            self.gate.wait()
            self.records += records

    def state_dict(self):
        with self.lock:
            self.calls.append("state_dict")
            return {"number": len(self.records)}

    def load_state_dict(self, state): ...

    def on_run_end(self):
        with self.lock:
            self.calls.append("on_run_end")


LATER = 10_000.0  # seconds, which a test would notice


@pytest.mark.timeout(60)
def test_saves_wait_only_once_for_a_blocked_monitor_and_name_it(waits, disk, caplog):
    blocked, other = Blocked(name="blocked"), Monitor(name="other")
    with Loop([blocked, other], store=disk) as run:
        for number in run.batches(range(5)):
            run.put_text("number", str(number))
            run.save("mine")
            assert blocked.is_waiting.wait(10)
            if number == 1:
                waits(LATER)  # from here on, no save may wait for it
        assert [step for _, step, _ in disk.checkpoints] == [1, 2, 3, 4, 5]
        waits(0.5)
    assert other.of("text") == [{"number": str(number)} for number in range(5)]
    named, lost, ended = caplog.messages
    assert re.fullmatch(
        r"blocked is blocked: on_records has not returned for 0\.5 s \(.*test_monitors\.py:\d+\);"
        r" the run continues and no longer waits for this monitor",
        named,
    )
    assert lost == f"blocked is still blocked: {len(other.records)} records did not reach it"
    assert ended == "blocked is blocked: on_run_end has not returned for 0.05 s; the run ends anyway"
    blocked.gate.set()


@pytest.mark.timeout(60)
def test_the_state_of_a_blocked_monitor_is_left_out_of_a_checkpoint(waits, disk):
    blocked = Blocked(name="blocked")
    with Loop([blocked], store=disk) as run:
        for _ in run.batches(range(3)):
            if run.step == 1:
                run.put_text("a", "b")
                assert blocked.is_waiting.wait(10)
                run.save("mine")
        blocked.gate.set()
    [(state, _, _)] = disk.checkpoints[:1]
    assert pickle.loads(state)["callbacks"]["blocked"]["state"] == {}
    assert blocked.calls[-1] == "on_run_end"


@pytest.mark.timeout(60)
def test_a_full_queue_of_a_blocked_monitor_waits_for_a_limited_time(waits, caplog):
    blocked, other = Blocked(name="blocked"), Monitor()
    with Loop([blocked, other]) as run:
        run.put_text("number", "first")
        assert blocked.is_waiting.wait(10)
        for number in range(CAPACITY):
            run.put_text("number", str(number))
        assert caplog.messages == []
        run.put_text("number", "one too many")
        assert [message.partition(":")[0] for message in caplog.messages] == ["blocked is blocked"]
        waits(LATER)
        for number in range(10):
            run.put_text("number", str(number))
        waits(0.5)
    assert len(other.of("text")) == CAPACITY + 12
    assert caplog.messages[1] == f"blocked is still blocked: {CAPACITY + 12} records did not reach it"
    blocked.gate.set()


@pytest.mark.timeout(60)
def test_saves_wait_again_for_a_blocked_monitor_that_caught_up(waits, disk, caplog, until):
    blocked = Blocked(name="blocked")
    with Loop([blocked], store=disk) as run:
        for number in run.batches(range(4)):
            run.put_text("number", str(number))
            run.save("mine")
            if number == 2:
                blocked.gate.set()
                until(lambda: len(blocked.of("text")) == 3 and not run.monitors._queues[0].is_blocked)
                waits(10.0)
    assert [message.partition(":")[0] for message in caplog.messages] == ["blocked is blocked"]
    assert blocked.of("text") == [{"number": str(number)} for number in range(4)]
    assert pickle.loads(disk.checkpoints[-1][0])["callbacks"]["blocked"]["state"]["number"] > 3


@pytest.mark.timeout(60)
def test_a_blocked_on_run_end_does_not_prevent_the_others(waits, caplog):
    gate, ended = threading.Event(), []

    class Blocks(Monitor):
        def on_run_end(self):
            gate.wait()

    class Ends(Monitor):
        def on_run_end(self, run):
            ended.append(run.name)
            raise OSError("disk is full")

    with pytest.raises(OSError, match="disk is full"), Loop([Blocks(name="first"), Ends(on_error="raise")], name="mine"):
        pass
    gate.set()
    assert ended == ["mine"]
    assert caplog.messages == ["first is blocked: on_run_end has not returned for 0.5 s; the run ends anyway"]


SIGNALLED = """
    import sys, threading, time
    from hookpoint import Callback, Loop
    from hookpoint import callbacks as cb
    from hookpoint.core.log import monitors

    monitors.DRAIN_SECONDS, monitors.LEAVE_SECONDS = float(sys.argv[1]), 0.05

    class Blocks(Callback):
        def on_records(self, records):
            print("blocks", flush=True)
            threading.Event().wait()

        def on_run_end(self):
            threading.Event().wait()

    def watch(run):
        while run.stop_reason is None:
            time.sleep(0.01)
        print("stops", flush=True)

    with Loop([cb.ModelSaver(), Blocks()], workdir="run", extra_callbacks=[], monitors=[cb.JSONWriter()]) as run:
        threading.Thread(target=watch, args=(run,), daemon=True).start()
        for number in run.batches(range(10**9)):
            run.put_text("number", str(number)) if number == 0 else time.sleep(0.01)
"""


@pytest.fixture
def signalled(tmp_path):
    """Train in a process whose monitor blocks, send it SIGTERM `times` times, and return its exit code and stderr."""

    def run(times, seconds):
        program = [sys.executable, "-c", textwrap.dedent(SIGNALLED), str(seconds)]
        pipe = subprocess.PIPE
        with subprocess.Popen(program, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True) as process:
            try:
                assert process.stdout.readline() == "blocks\n"
                process.send_signal(signal.SIGTERM)
                assert process.stdout.readline() == "stops\n"
                if times == 2:
                    process.send_signal(signal.SIGTERM)
                return process.wait(50), process.stderr.read()
            finally:
                process.kill()

    return run


@pytest.mark.timeout(120)
def test_a_process_with_a_blocked_monitor_saves_and_ends_on_sigterm(signalled, tmp_path):
    code, said = signalled(1, 0.2)
    assert code == 143
    assert said.count("Blocks is blocked: on_records has not returned") == 1
    assert said.count("Blocks is still blocked: ") == 1
    assert said.count("Blocks is blocked: on_run_end has not returned") == 1
    assert verify(tmp_path / "run").rows
    assert '"event": "signal"' in (tmp_path / "run" / "events.jsonl").read_text()


@pytest.mark.timeout(120)
def test_a_second_signal_does_not_wait_for_a_blocked_monitor(signalled):
    assert signalled(2, LATER)[0] == 143


# A failing monitor


def log_one_by_one(run, times):
    for _ in range(times):
        run.put_text("x", "y")
        run.monitors.drain()


def test_a_monitor_is_disabled_after_three_failures_in_a_row(caplog):
    failing, other = Failing(name="bad"), Monitor()
    with Loop([failing, other]) as run:
        log_one_by_one(run, 5)
    assert failing.calls == 3
    assert caplog.messages == [
        "bad failed at on_records: OSError: disk is full; the run continues",
        "bad failed at on_records: OSError: disk is full; the run continues",
        "bad failed at on_records: OSError: disk is full (3 times in a row); it is disabled for the rest of the run",
    ]
    assert len(other.of("text")) == 5


def test_a_monitor_with_on_error_disable_is_disabled_at_once(caplog):
    failing = Failing(name="bad", on_error="disable")
    with Loop([failing]) as run:
        log_one_by_one(run, 3)
    assert failing.calls == 1
    assert caplog.messages == ["bad failed at on_records: OSError: disk is full; it is disabled for the rest of the run"]


def test_a_monitor_with_on_error_raise_ends_the_run():
    failing = Failing(name="bad", on_error="raise")
    with pytest.raises(OSError, match="disk is full") as caught, Loop([failing]) as run:
        for _ in run.epochs(3):
            for _ in run.batches("ab"):
                run.put_text("x", "y")
                assert failing.called.wait(10)
            run.monitors.drain()
    assert run.epoch == 1
    assert caught.value.__notes__ == ["in callback bad at on_records"]


def test_failures_while_the_run_ends_are_raised():
    last_words = LambdaCallback(on_run_end=lambda run: run.log(x=1))
    with pytest.raises(OSError, match="disk is full"), Loop([last_words, Failing(on_error="raise")]):
        pass
    with pytest.raises(ExceptionGroup) as caught, Loop([last_words, Failing(on_error="raise"), Failing(on_error="raise")]):
        pass
    assert [str(one) for one in caught.value.exceptions] == ["disk is full", "disk is full"]


def test_monitors_run_only_on_the_chief(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monitor = Monitor()
    with Loop([monitor]) as run:
        run.log(x=1)
        assert not run.is_chief
    assert monitor.records == []
    assert run.metrics["x"] == 1.0
