from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import nn

from hookpoint import Callback, Every, Loop, MainCallback, Runner, on
from hookpoint.callbacks import ClassificationError, HookTrace, InferenceRunner, ModelSaver
from hookpoint.callbacks.profiling._chrome_trace import ChromeTrace

SLACK = 0.0011  # microseconds: times are written with three digits
PAUSE = 0.01


# Trace checker


@dataclass
class Span:
    name: str
    began: float
    ended: float
    args: dict
    thread: int
    children: list[Span] = field(default_factory=list)

    @property
    def seconds(self):
        return (self.ended - self.began) / 1e6

    def all(self):
        yield self
        for child in self.children:
            yield from child.all()

    def named(self, name):
        return [one for one in self.all() if one.name == name]


class NotATrace(Exception):
    """Spans are not nested."""


def spans_of(events):
    """Return the spans of each thread from both kinds of events. Raise if a begin has no end or an end has no begin."""
    found, open_ones = defaultdict(list), defaultdict(list)
    for event in events:
        thread = event["tid"]
        if event["ph"] == "X":
            if event["dur"] < 0:
                raise NotATrace(f"negative: {event}")
            found[thread].append(Span(event["name"], event["ts"], event["ts"] + event["dur"], event.get("args", {}), thread))
        elif event["ph"] == "B":
            open_ones[thread].append(Span(event["name"], event["ts"], event["ts"], event.get("args", {}), thread))
        elif event["ph"] == "E":
            if not open_ones[thread]:
                raise NotATrace(f"ends what never began: {event}")
            one = open_ones[thread].pop()
            one.ended = event["ts"]
            found[thread].append(one)
        elif event["ph"] != "M":
            raise NotATrace(f"of a kind nobody writes: {event}")
    if any(open_ones.values()):
        raise NotATrace(f"never ended: {[one.name for left in open_ones.values() for one in left]}")
    return found


def tree(spans):
    """Return the outermost spans with their children. Raise if two spans overlap without being nested."""
    roots, stack = [], []
    for one in sorted(spans, key=lambda one: (one.began, -one.ended)):
        while stack and stack[-1].ended <= one.began + SLACK:
            stack.pop()
        if stack and one.ended > stack[-1].ended + SLACK:
            raise NotATrace(f"{one.name} {one.began}-{one.ended} is not inside of {stack[-1].name} until {stack[-1].ended}")
        (stack[-1].children if stack else roots).append(one)
        stack.append(one)
    return roots


def checked(path):
    """Read a trace and check it: valid JSON, spans nest on every thread, and a single span, the run, contains all others."""
    events = json.loads(Path(path).read_text())
    trees = {thread: tree(spans) for thread, spans in spans_of(events).items()}
    (run,) = trees[1]
    assert run.name == "run"
    for one in run.all():
        inside = sum(child.seconds for child in one.children)
        assert inside <= one.seconds + 1e-6 * (1 + len(one.children)), f"what is in {one.name} takes longer than it"
    return run


def assert_takes(span, seconds):
    """Check a span against a duration that was measured around it."""
    assert span.seconds == pytest.approx(seconds, rel=0.05)


def event(phase, begin, length=None, name="a", thread=1):
    return {"ph": phase, "ts": begin, "tid": thread, "name": name, "pid": 0} | ({} if length is None else {"dur": length})


@pytest.mark.parametrize(
    "events",
    [
        [event("B", 0)],
        [event("E", 0)],
        [event("X", 0, 10), event("X", 5, 10)],
        [event("B", 0), event("X", 5, 10), event("E", 12)],
        [event("X", 0, -1)],
    ],
    ids=["never ended", "never began", "overlap", "child outlives", "negative"],
)
def test_the_checker_rejects_invalid_traces(events):
    with pytest.raises(NotATrace):
        for spans in spans_of(events).values():
            tree(spans)


def test_the_checker_accepts_valid_traces():
    events = [event("B", 0, name="run"), event("X", 1, 2), event("X", 3, 4), event("X", 4, 1, "in"), event("E", 9)]
    events.append(event("X", 2, 90, thread=2))
    (run,) = tree(spans_of(events)[1])
    assert [child.began for child in run.children] == [1, 3]
    assert [one.name for one in run.children[1].children] == ["in"]


# Runs


class Sleeps(Callback):
    """Take a visible amount of time at some points."""

    def setup(self, component, save_path):
        self.began = time.perf_counter()  # right before on_setup: earlier work of the run is not in its trace

    def on_train_iter_end(self, run):
        time.sleep(PAUSE)

    def on_epoch_end(self, run):
        time.sleep(2 * PAUSE)

    def on_val_epoch_begin(self, run):
        time.sleep(PAUSE)


def trained(workdir, *callbacks, epochs=2, batches=6, fail_at=None, **options):
    """Train a small model and return the seconds from on_setup to the end."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    inputs, targets = torch.randn(4 * batches, 3), torch.randint(0, 2, (4 * batches,))

    def slow(outputs, targets):
        time.sleep(PAUSE)
        return nn.functional.cross_entropy(outputs, targets)

    given = {"extra_callbacks": [], "monitors": [], **options}
    runner = Runner(model, torch.optim.SGD(model.parameters(), lr=0.1), slow, callbacks=callbacks, workdir=workdir, **given)
    runner.fit((inputs, targets), (inputs[:8], targets[:8]), epochs=epochs, batch_size=4)
    ended = time.perf_counter()
    return next((ended - one.began for one in callbacks if isinstance(one, Sleeps)), None)


def trace_of(workdir, number=1):
    return workdir / "profile" / f"hooks-{number}.json"


def test_a_runner_with_validation_is_traced(tmp_path):
    seconds = trained(tmp_path, HookTrace(), Sleeps())
    run = checked(trace_of(tmp_path))
    assert_takes(run, seconds)
    counts = Counter(one.name for one in run.all())
    assert counts["epoch 1"] == counts["epoch 2"] == 1
    assert (counts["train pass"], counts["val pass"]) == (2, 2)
    assert counts["iteration"] == 2 * (6 + 2)
    assert counts["data fetch"] == 2 * (6 + 1 + 2 + 1)
    assert counts["backward"] == counts["optimizer step"] == 12
    assert counts["forward"] == 12 + 4
    assert counts["Sleeps"] == 12 + 2 + 2
    epochs = [one for one in run.children if one.name.startswith("epoch")]
    assert [one.name for one in epochs[0].children if one.name.endswith("pass")] == ["train pass", "val pass"]
    passes = [one.name for one in epochs[0].children]
    assert passes.index("val pass") < passes.index("on_epoch_end")


def test_spans_contain_the_time_that_was_spent_in_them(tmp_path):
    trained(tmp_path, HookTrace(), Sleeps())
    run = checked(trace_of(tmp_path))
    (one, *_) = run.named("train pass")
    iterations = [child for child in one.children if child.name == "iteration"]
    assert len(iterations) == 6
    for iteration in iterations:
        inside = {child.name: child for child in iteration.children}
        assert list(inside) == ["forward", "backward", "optimizer step", "on_train_iter_end"]
        assert inside["forward"].seconds >= PAUSE
        (handler,) = inside["on_train_iter_end"].children
        assert (handler.name, handler.args["point"]) == ("Sleeps", "on_train_iter_end")
        assert handler.seconds >= PAUSE
    assert [iteration.args["batch_idx"] for iteration in iterations] == list(range(6))
    assert [iteration.args["step"] for iteration in iterations] == list(range(6))
    assert {iteration.args["epoch"] for iteration in iterations} == {1}


def test_the_own_times_of_all_spans_add_up_to_the_run(tmp_path):
    seconds = trained(tmp_path, HookTrace(), Sleeps(), epochs=3)
    run = checked(trace_of(tmp_path))

    def own(span):
        return span.seconds - sum(child.seconds for child in span.children)

    assert sum(own(one) for one in run.all()) == pytest.approx(run.seconds)
    assert_takes(run, seconds)
    passes = sum(one.seconds for one in run.all() if one.name.endswith("pass"))
    iterations = sum(one.seconds for one in run.all() if one.name in ("iteration", "data fetch"))
    assert 0.9 * passes < iterations + 3 * PAUSE <= passes + 3 * PAUSE


def test_a_validation_within_a_handler_is_nested_in_its_span(tmp_path):
    inputs, targets = torch.randn(8, 3), torch.zeros(8, dtype=torch.long)
    by_epoch = InferenceRunner((inputs, targets), ClassificationError(), batch_size=4, name="by epoch")
    other = ClassificationError("wrong-top1", "other")
    by_steps = InferenceRunner((inputs, targets), other, batch_size=4, name="by steps").when(Every(steps=4))
    seconds = trained(tmp_path, by_epoch, HookTrace(), by_steps, Sleeps())
    run = checked(trace_of(tmp_path))
    assert_takes(run, seconds)
    for name, point in (("by epoch", "on_epoch_end"), ("by steps", "on_iter_end")):
        handlers = [one for one in run.named(name) if one.args["point"] == point]
        assert handlers
        for handler in handlers:
            (inner,) = [child for child in handler.children if child.name == "val pass"]
            assert [child.name for child in inner.children].count("iteration") == 2


def test_an_accumulated_step_has_a_single_optimizer_step_span(tmp_path):
    seconds = trained(tmp_path, HookTrace(), Sleeps(), batches=5, accumulate=2)
    run = checked(trace_of(tmp_path))
    assert_takes(run, seconds)
    first = run.named("train pass")[0]
    steps = [len(one.named("optimizer step")) for one in first.children if one.name == "iteration"]
    assert steps == [0, 1, 0, 1, 1]


def test_a_custom_main_callback_is_traced(tmp_path):
    class Main(MainCallback):
        def on_iter_forward(self, run):
            run.forward()

        def on_iter_backward(self, run):
            run.backward()
            run.optimizer_step()

    trained(tmp_path, HookTrace(), Main())
    run = checked(trace_of(tmp_path))
    iteration = run.named("iteration")[0]
    assert [one.name for one in iteration.children] == ["forward", "on_iter_backward"]
    assert [one.name for one in iteration.children[0].children] == ["Main"]
    assert {"backward", "optimizer step"} <= {one.name for one in iteration.children[1].all()}


def test_a_backward_pass_within_a_handler_is_traced(tmp_path):
    model = nn.Linear(2, 1)

    @on("on_late")
    def late(run):
        run.loss = model(torch.ones(1, 2)).sum()
        run.backward()

    with Loop([HookTrace(), late], model=model, optimizer=torch.optim.SGD(model.parameters()), workdir=tmp_path) as run:
        for _ in run.batches(range(3)):
            time.sleep(PAUSE)
            run.fire("on_late")
            run.optimizer_step()
    span = checked(trace_of(tmp_path))
    assert [one.name for one in span.named("iteration")[0].children][:2] == ["late", "optimizer step"]
    assert len(span.named("backward")) == 3


def test_your_own_loop_is_traced(tmp_path):
    sleeps = Sleeps()
    with Loop([HookTrace(), sleeps], workdir=tmp_path) as run:
        for _ in run.epochs(2):
            for batch in run.batches(range(4)):
                time.sleep(PAUSE)
                run.log(loss=batch)
            for batch in run.batches(range(3), mode="val"):
                run.log(loss=batch)
            for _ in run.batches(range(2), mode="pred"):
                pass
    seconds = time.perf_counter() - sleeps.began
    span = checked(trace_of(tmp_path))
    assert_takes(span, seconds)
    assert [len(span.named(f"{mode} pass")) for mode in ("train", "val", "pred")] == [2, 2, 2]
    assert len(span.named("iteration")) == 2 * (4 + 3 + 2)
    assert all(one.seconds >= 2 * PAUSE for one in span.named("iteration") if one.named("Sleeps"))


def test_a_break_out_of_a_loop_closes_its_spans(tmp_path):
    with Loop([HookTrace(), Sleeps()], workdir=tmp_path) as run:
        for _ in run.epochs(5):
            for batch in run.batches(range(10)):
                for inner in run.batches(range(10), mode="val"):
                    if inner == 2:
                        break
                if batch == 2:
                    break
            if run.epoch == 2:
                break
        run.log(loss=1.0)
    span = checked(trace_of(tmp_path))
    assert len(span.named("train pass")) == 2
    assert len(span.named("val pass")) == 6
    assert len(span.named("iteration")) == 2 * (3 + 3 * 3)
    assert span.named("val pass")[0] in list(span.named("iteration")[0].all())


@pytest.mark.parametrize(
    "point", ["on_train_iter_end", "on_backward_end", "on_step_begin", "on_epoch_end", "on_val_iter_begin"]
)
def test_an_exception_closes_all_spans(tmp_path, point):
    def fails(run):
        time.sleep(PAUSE)
        if run.step >= 3:
            raise ValueError("in the middle")

    ends = []
    callbacks = [HookTrace(), on(point)(fails), on("on_run_end")(lambda run: ends.append(run.step))]
    with pytest.raises(ValueError, match="in the middle"):
        trained(tmp_path, *callbacks)
    span = checked(trace_of(tmp_path))
    assert ends
    assert span.named("fails")
    assert span.children[-1].args["point"] == "on_run_end"


def test_a_contained_exception_closes_the_spans_it_left_open(tmp_path):
    def forward(run):
        raise ValueError("no")

    runner = InferenceRunner([1, 2], ClassificationError(), forward=forward, on_error="disable", name="bad")
    trained(tmp_path, runner, HookTrace(), Sleeps())
    span = checked(trace_of(tmp_path))
    (handler,) = [one for one in span.named("bad") if one.args["point"] == "on_epoch_end"]
    (inner,) = [child for child in handler.children if child.name == "val pass"]
    assert len(inner.named("iteration")) == 1
    assert len([child for child in span.children if child.name.startswith("epoch")]) == 2


def test_stops_skips_and_retries_are_traced(tmp_path):
    tried = []

    @on("on_train_iter_begin")
    def skips(run):
        if run.batch == 1:
            run.skip_batch()
        if run.batch == 2 and len(tried) < 2:
            tried.append(run.batch)
            run.retry()
        if run.batch == 4:
            run.stop("enough")

    with Loop([HookTrace(), skips], workdir=tmp_path) as run:
        for _ in run.epochs(3):
            for batch in run.batches(range(9)):
                run.log(loss=batch)
    span = checked(trace_of(tmp_path))
    assert [one.args["batch_idx"] for one in span.named("iteration")] == [0, 1, 2, 2, 2, 3, 4]
    assert len(span.named("data fetch")) == 5


def test_a_resumed_run_has_a_separate_trace(tmp_path):
    @on("on_train_iter_end")
    def fails(run):
        if run.step == 5:
            raise ValueError("cut off")

    saver = ModelSaver().when(Every(steps=2))
    with pytest.raises(ValueError, match="cut off"):
        trained(tmp_path, HookTrace(), saver, fails)
    seconds = trained(tmp_path, HookTrace(), saver, Sleeps())
    first, second = checked(trace_of(tmp_path)), checked(trace_of(tmp_path, 2))
    assert_takes(second, seconds)
    assert [one.args["step"] for one in first.named("iteration")] == [0, 1, 2, 3, 4]
    again = [one.args["step"] for one in second.named("iteration") if one.named("backward")]
    assert again == list(range(4, 12))
    assert [one for one in second.named("ModelSaver") if one.args["point"] == "state_dict"]


def test_custom_points_are_traced(tmp_path):
    @on("on_say")
    def hears(run, words):
        time.sleep(PAUSE)

    with Loop([HookTrace(), hears], workdir=tmp_path) as run:
        for _ in run.batches(range(2)):
            run.fire("on_say", words="loud")
    span = checked(trace_of(tmp_path))
    assert [one.args["point"] for one in span.named("hears")] == ["on_say", "on_say"]
    assert all(any(one.named("hears")) for one in span.named("iteration"))


def test_monitors_are_traced_on_their_own_threads(tmp_path):
    with Loop([HookTrace()], workdir=tmp_path, log_every=1) as run:
        for batch in run.batches(range(3)):
            run.log(loss=batch)
    events = json.loads(trace_of(tmp_path).read_text())
    names = {
        event["tid"]: event["args"]["name"]
        for event in events
        if event["name" if event["ph"] == "M" else "ph"] == "thread_name"
    }
    by_thread = spans_of(events)
    (writer,) = [thread for thread, name in names.items() if name == "hookpoint JSONWriter"]
    assert {one.args["point"] for one in by_thread[writer]} == {"on_records"}
    for spans in by_thread.values():
        tree(spans)


# Trace size


def test_the_first_steps_of_each_window_are_traced(tmp_path):
    with Loop([HookTrace(3, every=10), Sleeps()], workdir=tmp_path, extra_callbacks=[], monitors=[]) as run:
        for _ in run.epochs(2):
            for batch in run.batches(range(12)):
                run.log(loss=batch)
            for batch in run.batches(range(2), mode="val"):
                run.log(loss=batch)
    span = checked(trace_of(tmp_path))
    train = [one for one in span.named("iteration") if one.named("Sleeps")]
    assert [one.args["step"] for one in train] == [0, 1, 2, 10, 11, 12, 20, 21, 22]
    assert len(span.named("val pass")) == 2
    assert len([one for one in span.named("Sleeps") if one.args["point"] == "on_epoch_end"]) == 2


def test_after_max_events_only_open_spans_are_closed(tmp_path):
    trained(tmp_path, HookTrace(None, max_events=50), Sleeps(), batches=30)
    span = checked(trace_of(tmp_path))
    events = json.loads(trace_of(tmp_path).read_text())
    assert 50 <= sum(event["ph"] != "M" for event in events) < 50 + 8
    assert len(span.named("iteration")) < 10
    assert trace_of(tmp_path).stat().st_size < 50 * 200


def test_a_window_that_records_everything_raises():
    with pytest.raises(ValueError, match=r"HookTrace: every=10 must be above steps=10\.\n  give .* steps=None"):
        HookTrace(10, every=10)


@pytest.mark.parametrize("bad", [{"steps": 0}, {"every": 0}, {"max_events": 0}, {"steps": "10"}])
def test_invalid_numbers_raise(bad):
    with pytest.raises(ValueError, match=r"HookTrace: .* must be an integer"):
        HookTrace(**bad)


def test_a_workdir_is_required():
    with pytest.raises(ValueError, match="HookTrace needs a workdir"), Loop([HookTrace()]):
        pass


# Files


def test_an_instance_can_be_reused(tmp_path):
    trace = HookTrace()
    trained(tmp_path / "a", trace)
    trained(tmp_path / "b", trace)
    trained(tmp_path / "b", trace, resume="never")
    for path in (tmp_path / "a", tmp_path / "b"):
        assert len(checked(trace_of(path)).named("train pass")) == 2


def test_two_traces_record_each_other(tmp_path):
    trained(tmp_path, HookTrace(), HookTrace(2, name="second"), Sleeps())
    assert len(checked(trace_of(tmp_path)).named("iteration")) == 16
    assert len([one for one in checked(trace_of(tmp_path, 2)).named("iteration") if one.named("Sleeps")]) == 2


def test_validate_alone_writes_no_trace(tmp_path):
    model = nn.Linear(3, 2)
    runner = Runner(model, None, nn.CrossEntropyLoss(), callbacks=[HookTrace()], workdir=tmp_path, monitors=[])
    runner.validate((torch.randn(4, 3), torch.zeros(4, dtype=torch.long)), batch_size=2)
    assert not (tmp_path / "profile").exists()


def test_a_failing_disk_ends_the_trace_but_not_the_run(tmp_path, caplog):
    (tmp_path / "profile").write_text("in the way")
    trained(tmp_path, HookTrace(), Sleeps())
    assert "nothing is traced" in caplog.text


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_a_full_disk_is_reported_once(tmp_path, caplog):
    trace = ChromeTrace(tmp_path / "trace.json", process=0, title="a run", began=0, max_events=9)
    trace._file.close()
    trace._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115 - the trace closes it
    for _ in range(3):
        trace.complete("a", 0, 1)
        trace.flush()
    trace.close()
    assert trace.is_full
    assert caplog.text.count("the trace ends here") == 1


def write_a_lot(trace):
    for _ in range(2000):
        trace.complete("of a child", 0, 1)
    trace.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_writes_nothing_to_the_trace(tmp_path):
    trace = ChromeTrace(tmp_path / "trace.json", process=0, title="a run", began=0, max_events=9999)
    trace.complete("before", 0, 1)
    child = multiprocessing.get_context("fork").Process(target=write_a_lot, args=[trace])
    child.start()
    child.join()
    trace.complete("after", 1, 2)
    trace.close()
    assert [event["name"] for event in json.loads(trace.path.read_text()) if event["ph"] == "X"] == ["before", "after"]


KILLED = """
import os, signal, sys
from hookpoint import Loop
from hookpoint.callbacks import HookTrace

with Loop([HookTrace(None)], workdir=sys.argv[1], extra_callbacks=[], monitors=[]) as run:
    for _ in run.epochs(3):
        for batch in run.batches(range(400)):
            if run.step == 700:
                os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_run_leaves_a_trace_that_lacks_only_its_end(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    words = trace_of(tmp_path).read_text()
    with pytest.raises(json.JSONDecodeError):
        json.loads(words)
    events = json.loads(words[: words.rindex("\n") if not words.endswith("}") else None].rstrip(",") + "]")
    assert [event["name"] for event in events if event["ph"] == "B"][:3] == ["run", "epoch 1", "train pass"]
    assert max(event["args"]["step"] for event in events if event.get("name") == "iteration") > 600


def test_training_is_bitwise_the_same_as_without_a_trace(tmp_path):
    def weights(*callbacks):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))
        optimizer = torch.optim.Adam(model.parameters())
        runner = Runner(model, optimizer, nn.CrossEntropyLoss(), callbacks=callbacks, workdir=tmp_path, seed=1, monitors=[])
        data = torch.randn(32, 3), torch.randint(0, 2, (32,))
        runner.fit(data, data, epochs=2, batch_size=4)
        return torch.cat([parameter.flatten() for parameter in model.parameters()])

    assert torch.equal(weights(), weights(HookTrace()))
