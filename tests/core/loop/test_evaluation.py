from __future__ import annotations

import os
import random
import signal

import pytest

from hookpoint import Callback, MainCallback, StopRun
from hookpoint.core.errors import BadData, BadLoop
from hookpoint.core.loop.loop import Loop
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.stepper import Stepper

MODEL = {"model": lambda x: 2 * x, "criterion": lambda outputs, targets: outputs - targets}
PAIRS = [(1, 1), (2, 1), (3, 1)]


class Points(Callback):
    """Record every point of validation and its mode."""

    def __init__(self):
        self.seen = []

    def on_val_epoch_begin(self, run):
        self.seen.append(("begin", run.mode))

    def on_val_iter_begin(self, run):
        self.seen.append(("iter begin", run.batch))

    def on_val_iter_end(self, run):
        self.seen.append(("iter end", run.outputs, run.loss))

    def on_val_epoch_end(self, run):
        self.seen.append(("end", run.mode))


class Skips(Callback):
    def __init__(self, *numbers):
        self.numbers = numbers

    def on_val_iter_begin(self, run):
        if run.batch[0] in self.numbers:
            run.skip_batch()


class Kept:
    """A saver, and the store it needs."""

    saves = True

    def on_trigger(self, run):
        run.save("kept")

    def save(self, state, *, step, tags):
        return "nowhere"


def test_evaluate_is_a_validation_pass_with_the_forward_of_the_run():
    points = Points()
    with Loop([points], **MODEL) as run:
        assert dict(run.evaluate(PAIRS[:2])) == {}
        assert run.mode is None
    assert points.seen == [
        ("begin", "val"),
        ("iter begin", (1, 1)),
        ("iter end", 2, 1),
        ("iter begin", (2, 1)),
        ("iter end", 4, 3),
        ("end", "val"),
    ]


def test_update_gets_each_batch_and_results_are_final_values():
    seen = []
    with Loop(**MODEL) as run:
        for _ in run.epochs(1):
            for _ in run.batches([1, 2]):
                values = run.evaluate(
                    PAIRS, update=lambda run: seen.append(run.outputs), results=lambda logged: {"sum": sum(seen)}
                )
                assert values == {"sum": sum(seen)}
                assert run.metrics["sum"] == sum(seen)
    assert seen == [2, 4, 6, 2, 4, 6]
    assert run.monitors.get_history("sum") == [(0, 12.0), (1, 24.0)]  # not averaged, although a training pass is open


def test_values_logged_in_an_evaluation_reach_only_results():
    logged = {}

    class Logs(Callback):
        def on_val_iter_end(self, run):
            run.log(value=run.batch[0])
            run.put_scalar("as given", 1)

    with Loop([Logs()], **MODEL) as run:
        run.evaluate(PAIRS, results=lambda means: logged.update(means) or {"mean": means["val_value"]})
        assert {name: float(mean) for name, mean in run.evaluate(PAIRS).items()} == {"val_value": 2.0, "as given": 1.0}
    assert {name: float(mean) for name, mean in logged.items()} == {"val_value": 2.0, "as given": 1.0}
    assert dict(run.metrics) == {"mean": 2.0}


def test_a_given_forward_takes_precedence():
    class Main(MainCallback):
        def on_val_forward(self, run):
            run.outputs = "main"

    def forward(run):
        run.outputs = "given"

    seen = []
    with Loop([Main()]) as run:
        run.evaluate([1], update=lambda run: seen.append(run.outputs))
        run.evaluate([1], update=lambda run: seen.append(run.outputs), forward=forward)
    assert seen == ["main", "given"]


def test_without_a_criterion_there_is_no_loss():
    seen = []
    with Loop(model=MODEL["model"]) as run:
        run.evaluate(PAIRS[:1], update=lambda run: seen.append((run.outputs, run.targets, run.loss)))
    assert seen == [(2, 1, None)]


@pytest.mark.parametrize(("batch", "found"), [(1, "int"), ((1, 2, 3), "tuple of length 3"), ({"x": 1, "y": 2}, "dict")])
def test_a_batch_that_is_not_a_pair_needs_a_forward(batch, found):
    message = rf"^expected each batch to be a pair \(inputs, targets\), got {found}\.\n  write     your own forward"
    with Loop(**MODEL) as run, pytest.raises(BadData, match=message):
        run.evaluate([batch])


def test_a_stepper_provides_the_evaluation_mode_and_the_batches():
    held = []

    class Holding:
        def __init__(self, model):
            self.model = model

        def __enter__(self):
            held.append(self.model)

        def __exit__(self, *error):
            held.append("let go")

    stepper = Stepper(evaluating=Holding, batches=lambda data, batch_size: [(data[0], batch_size)])
    seen = []
    with Loop(stepper=stepper, **MODEL) as run:
        run.evaluate((5,), batch_size=3, update=lambda run: seen.append((run.batch, len(held))))
    assert seen == [((5, 3), 1)]
    assert held == [MODEL["model"], "let go"]


# The state of training is restored


class Sampler:
    generator = None


class Loader(list):
    """Draws from every generator that a loader can use."""

    def __init__(self, batches, generator, sampler):
        super().__init__(batches)
        self.generator, self.sampler = generator, Sampler()
        self.sampler.generator = sampler

    def __iter__(self):
        for batch in super().__iter__():
            random.random()
            self.generator.random()
            self.sampler.generator.random()
            yield batch


class Generator(random.Random):
    """Python's generator with the methods of torch's."""

    def get_state(self):
        return self.getstate()

    def set_state(self, state):
        self.setstate(state)


@pytest.mark.parametrize("fails", [False, True])
def test_random_states_are_restored_including_those_of_the_loader(fails):
    generator, sampler = Generator(1), Generator(2)
    expected = (random.getstate(), generator.getstate(), sampler.getstate())

    def update(run):
        if fails:
            raise KeyError("fails")

    with Loop(**MODEL) as run:
        try:
            run.evaluate(Loader(PAIRS, generator, sampler), update=update)
        except KeyError:
            assert fails
    assert (random.getstate(), generator.getstate(), sampler.getstate()) == expected


def test_evaluate_does_not_replace_the_validation_loader():
    with Loop(**MODEL) as run:
        for _ in run.batches(PAIRS, "val"):
            pass
        run.evaluate([(1, 1)])
        assert run.val_loader is PAIRS


def test_an_error_restores_the_iteration_and_the_mode():
    def update(run):
        raise ValueError("no")

    with Loop(**MODEL) as run:
        for _ in run.epochs(1):
            for batch in run.batches(["training"]):
                run.outputs = "mine"
                with pytest.raises(ValueError, match="no"):
                    run.evaluate(PAIRS, update=update)
                assert (run.mode, run.batch, run.outputs, run.batch_idx) == ("train", batch, "mine", 0)
                run.log(loss=1.0)
    assert run.epoch_complete
    assert dict(run.metrics) == {"loss": 1.0}


# Skipped batches, stops and signals


def test_data_without_batches_raises():
    with Loop(**MODEL) as run, pytest.raises(BadLoop, match=r"^the validation data yielded no batch\.\n  check     that"):
        run.evaluate([])


def test_data_without_batches_raises_even_after_a_stop():
    with Loop(**MODEL) as run:
        run.stop("enough")
        with pytest.raises(BadLoop, match="yielded no batch"):
            run.evaluate([])


def test_a_skipped_batch_does_not_count():
    seen = []
    with Loop([Skips(2)], **MODEL) as run:
        run.evaluate(PAIRS, update=lambda run: seen.append(run.batch[0]))
    assert seen == [1, 3]


def test_a_batch_skipped_by_the_forward_does_not_count():
    seen = []

    def forward(run):
        if run.batch[0] == 2:
            run.skip_batch()

    with Loop() as run:
        run.evaluate(PAIRS, update=lambda run: seen.append(run.batch[0]), forward=forward)
    assert seen == [1, 3]


def test_there_are_no_results_if_all_batches_are_skipped():
    with Loop([Skips(1, 2, 3)], **MODEL) as run:
        assert run.evaluate(PAIRS, results=lambda logged: {"never": 1}) == {}
    assert "never" not in run.metrics


def test_a_requested_stop_does_not_end_an_evaluation():
    seen = []
    with Loop(**MODEL) as run:
        run.stop("enough")
        run.evaluate(PAIRS, update=lambda run: seen.append(run.batch[0]))
    assert seen == [1, 2, 3]


def test_stop_epoch_ends_an_evaluation_with_the_results_so_far():
    seen = []

    def update(run):
        seen.append(run.batch[0])
        if len(seen) == 2:
            run.stop_epoch()

    with Loop(**MODEL) as run:
        assert run.evaluate(PAIRS, update=update, results=lambda logged: {"seen": len(seen)}) == {"seen": 2}


def test_stop_run_ends_the_run_and_closes_the_pass():
    points = Points()

    def update(run):
        raise StopRun("found it")

    with Loop([points], **MODEL) as run:
        run.evaluate(PAIRS, update=update)
    assert points.seen[-1][0] == "end"


def interrupted(run):
    if run.batch[0] == 2 and machine_of(run).signals.received is None:
        os.kill(os.getpid(), signal.SIGINT)


def test_an_evaluation_interrupted_by_a_signal_has_no_results():
    seen, results = [], []
    with pytest.raises(KeyboardInterrupt), Loop(**MODEL) as run:
        for _ in run.epochs(3):
            for _ in run.batches([1]):
                pass
            results.append(
                run.evaluate(
                    PAIRS,
                    update=lambda run: (seen.append(run.batch[0]), interrupted(run)),
                    results=lambda logged: {"value": 1},
                )
            )
    assert seen == [1, 2]
    assert results == [{}]


def test_with_a_saver_an_evaluation_finishes_after_a_signal():
    seen, saver = [], Kept()
    with pytest.raises(KeyboardInterrupt), Loop([saver], store=saver, **MODEL) as run:
        for _ in run.epochs(3):
            for _ in run.batches([1]):
                values = run.evaluate(
                    PAIRS,
                    update=lambda run: (seen.append(run.batch[0]), interrupted(run)),
                    results=lambda logged: {"value": 1},
                )
    assert seen == [1, 2, 3]
    assert values == {"value": 1}
