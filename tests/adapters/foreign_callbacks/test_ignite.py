"""Ignite handlers behave the same on IgniteEngines in our Runner as on ignite's own engines, given the same losses."""

from __future__ import annotations

from inspect import signature

import pytest

ignite = pytest.importorskip("ignite", reason="ignite is not installed: make test-adapters")
torch = pytest.importorskip("torch")

from ignite.engine import Engine, Events  # noqa: E402
from ignite.handlers import BasicTimeProfiler, Checkpoint, DiskSaver, EarlyStopping, TerminateOnNan  # noqa: E402
from ignite.metrics import Average, RunningAverage  # noqa: E402
from tests.adapters.foreign_callbacks.scripted import BATCHES, Script, Scripted, ours  # noqa: E402

from hookpoint import Callback, adapters  # noqa: E402
from hookpoint import callbacks as cb  # noqa: E402
from hookpoint.core.errors import BadLoop, CompileError  # noqa: E402

NAN = float("nan")
LOSSES = [4.0, 2.0, 3.0, 1.0, 1.5, 1.25, 1.0, 1.0, 0.5, 0.5]


class Both:
    """A trainer and an evaluator: ignite's own engines, or the engines of our run."""

    def __init__(self, *, is_ours):
        self.is_ours = is_ours
        self.model = torch.nn.Linear(1, 1)
        if is_ours:
            self.engines = adapters.IgniteEngines()
            self.trainer, self.evaluator = self.engines.trainer, self.engines.evaluator
        else:
            self.trainer = Engine(lambda engine, batch: torch.tensor(self.script.next_train()))
            self.evaluator = Engine(lambda engine, batch: self.script.next_val())

    def run(self, val, train=None):
        if self.is_ours:
            return ours([self.engines], val, train=train)
        self.script = Script(val, train)

        def evaluate(engine):
            self.evaluator.run([0], max_epochs=1)

        def measure(engine):
            engine.state.metrics["loss"] = engine.state.output

        self.evaluator.add_event_handler(Events.EPOCH_COMPLETED, measure)
        self.trainer.add_event_handler(Events.EPOCH_COMPLETED, evaluate)
        return self.trainer.run([0] * BATCHES, max_epochs=len(val))


@pytest.fixture
def both():
    return [Both(is_ours=False), Both(is_ours=True)]


# Before version 0.5.5, these arguments had other names.
HAS_THRESHOLD = "threshold" in signature(EarlyStopping).parameters
THRESHOLD, CUMULATIVE = ("threshold", "cumulative") if HAS_THRESHOLD else ("min_delta", "cumulative_delta")


def score(engine):
    return -engine.state.metrics["loss"]


@pytest.mark.parametrize("options", [{}, {THRESHOLD: 0.75}, {THRESHOLD: 0.75, CUMULATIVE: True}], ids=str)
def test_early_stopping_matches_ignite(both, options):
    states = []
    for one in both:
        handler = EarlyStopping(2, score, one.trainer, **options)
        one.evaluator.add_event_handler(Events.COMPLETED, handler)
        result = one.run(LOSSES)
        states.append((one.trainer.state.epoch, handler.counter, handler.best_score))
    assert states[0] == states[1]
    assert result.stop_reason == "EarlyStopping called trainer.terminate()"


@pytest.mark.parametrize("number", [1, 2])
def test_checkpoint_matches_ignite(both, number, tmp_path):
    states = []
    for one in both:
        folder = tmp_path / str(one.is_ours)
        handler = Checkpoint(
            {"model": one.model}, DiskSaver(folder, create_dir=True), n_saved=number, score_function=score, score_name="val"
        )
        one.evaluator.add_event_handler(Events.COMPLETED, handler)
        one.run(LOSSES)
        states.append((sorted(path.name for path in folder.iterdir()), str(handler.last_checkpoint).rpartition("/")[2]))
    assert states[0] == states[1]
    assert len(states[1][0]) == number


def test_checkpoints_are_numbered_by_the_trainers_iteration(both, tmp_path):
    names = []
    for one in both:
        folder = tmp_path / str(one.is_ours)
        handler = Checkpoint({"model": one.model}, DiskSaver(folder, create_dir=True), n_saved=None)
        one.trainer.add_event_handler(Events.EPOCH_COMPLETED(every=2), handler)
        one.run(LOSSES[:4])
        names.append(sorted(path.name for path in folder.iterdir()))
    assert names[0] == names[1] == ["model_4.pt", "model_8.pt"]


def test_terminate_on_nan_matches_ignite(both):
    iterations = []
    for one in both:
        one.trainer.add_event_handler(Events.ITERATION_COMPLETED, TerminateOnNan())
        result = one.run(LOSSES[:4], train=[4.0, NAN, 1.0, 1.0])
        iterations.append(one.trainer.state.iteration)
    assert iterations[0] == iterations[1] == BATCHES + 1
    assert result.stop_reason == "TerminateOnNan called trainer.terminate()"


def test_plain_and_filtered_events_fire_with_the_same_clocks(both):
    records = []
    for one in both:
        record = []

        def note(engine, name, record=record):
            state = engine.state
            record.append((name, state.epoch, state.iteration, state.max_epochs, state.epoch_length))

        events = {
            "every": Events.ITERATION_COMPLETED(every=3),
            "once": Events.EPOCH_STARTED(once=2),
            "filter": Events.ITERATION_STARTED(event_filter=lambda engine, event: event in (2, 5)),
            "after": Events.EPOCH_COMPLETED(after=2),
            "either": Events.STARTED | Events.COMPLETED,
            **{name: getattr(Events, name) for name in ("GET_BATCH_STARTED", "GET_BATCH_COMPLETED", "ITERATION_STARTED")},
        }
        for name, event in events.items():
            one.trainer.add_event_handler(event, note, name)
        one.run(LOSSES[:4])
        records.append(record)
    assert records[0] == records[1]
    assert [row[2] for row in records[1] if row[0] == "every"] == [3, 6]


def test_evaluator_events_fire_with_the_same_clocks(both):
    records = []
    for one in both:
        record = []
        names = ("STARTED", "EPOCH_STARTED", "ITERATION_STARTED", "ITERATION_COMPLETED", "COMPLETED")
        for name in names:
            one.evaluator.add_event_handler(
                getattr(Events, name),
                lambda engine, n=name, to=record: to.append((n, engine.state.epoch, engine.state.iteration)),
            )
        one.run(LOSSES[:2])
        records.append(record)
    assert records[0] == records[1]


def test_metrics_of_ignite_work():
    engines = adapters.IgniteEngines()
    Average(output_transform=lambda output: output[0]).attach(engines.evaluator, "mine")
    RunningAverage(output_transform=lambda loss: loss).attach(engines.trainer, "running")
    seen = []
    engines.evaluator.add_event_handler(Events.COMPLETED, lambda engine: seen.append(dict(engine.state.metrics)))
    ours([engines], LOSSES[:2])
    assert [float(one["mine"]) for one in seen] == [one["loss"] for one in seen] == LOSSES[:2]
    assert float(engines.trainer.state.metrics["running"]) == pytest.approx(4.0 * 0.98**2 + 2.0 * (1 - 0.98**2))


def test_terminate_epoch_ends_the_epoch(both):
    iterations = []
    for one in both:
        ends = Events.ITERATION_COMPLETED(event_filter=lambda engine, event: engine.state.epoch == 2)
        one.trainer.add_event_handler(ends, lambda engine: engine.terminate_epoch())
        per_epoch = []
        one.trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda engine, to=per_epoch: to.append(engine.state.epoch))
        one.run(LOSSES[:3])
        iterations.append((one.trainer.state.epoch, per_epoch))
    assert iterations[0] == iterations[1]
    assert ours([both[1].engines], LOSSES[:3]).iteration == 3 * BATCHES - 1


def test_handlers_can_be_found_and_removed():
    engines = adapters.IgniteEngines()
    called = []

    def handler(engine):
        called.append(engine.state.iteration)

    every = Events.ITERATION_COMPLETED(every=2)
    handle = engines.trainer.add_event_handler(Events.ITERATION_COMPLETED, handler)
    with engines.trainer.add_event_handler(every, handler):
        assert engines.trainer.has_event_handler(handler, Events.ITERATION_COMPLETED)
    handle.remove()
    assert not engines.trainer.has_event_handler(handler)
    engines.trainer.add_event_handler(Events.COMPLETED, handler)
    engines.trainer.remove_event_handler(handler, Events.COMPLETED)
    ours([engines], LOSSES[:1])
    assert called == []


def test_attaching_to_an_event_without_an_equivalent_raises():
    engines = adapters.IgniteEngines()
    with pytest.raises(CompileError, match=r"^BasicTimeProfiler \(ignite\) measures ignite's own loop, not a run"):
        BasicTimeProfiler().attach(engines.trainer)
    with pytest.raises(CompileError, match="a run does not have the event"):
        engines.trainer.add_event_handler(Events.DATALOADER_STOP_ITERATION, lambda engine: None)
    with pytest.raises(BadLoop, match=r"^trainer.run\(...\): a hookpoint run drives this engine"):
        engines.trainer.run([0])


def test_an_error_fires_exception_raised_and_propagates():
    engines, seen = adapters.IgniteEngines(), []
    engines.trainer.add_event_handler(Events.EXCEPTION_RAISED, lambda engine, error: seen.append(str(error)))
    engines.trainer.add_event_handler(Events.COMPLETED, lambda engine: seen.append("completed"))

    class Fails(Callback):
        def on_epoch_end(self):
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        ours([engines, Fails()], LOSSES)
    assert seen == ["mine"]


@pytest.mark.parametrize("after", [1, 3, 5])
def test_early_stopping_continues_after_a_resume(tmp_path, after):
    def make():
        engines = adapters.IgniteEngines()
        engines.evaluator.add_event_handler(Events.COMPLETED, EarlyStopping(2, score, engines.trainer))
        engines.trainer.add_event_handler(
            Events.ITERATION_COMPLETED, Scripted(Script([0.0])).eval
        )  # a bound method: the state is its object's, not the handler's
        return engines

    run = ours([make()], LOSSES)
    ours([make(), cb.ModelSaver()], LOSSES, epochs=after, workdir=tmp_path)
    resumed = make()
    assert ours([resumed, cb.ModelSaver()], LOSSES, workdir=tmp_path, done=after).epoch == run.epoch == 6
    assert list(resumed.state_dict()) == ["evaluator/EarlyStopping#1"]
