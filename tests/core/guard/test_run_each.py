from __future__ import annotations

import pytest

from hookpoint import Callback, LambdaCallback, current_run, run_each
from hookpoint.core.loop.loop import Loop


class Trace(Callback):
    def __init__(self):
        self.seen = []

    def on_seeds_begin(self, items):
        self.seen.append(("seeds begin", items))

    def on_seed_begin(self, seed, index, items):
        self.seen.append(("begin", seed, index, len(items)))

    def on_seed_end(self, seed):
        self.seen.append(("end", seed))

    def on_seed_error(self, error):
        self.seen.append(("error", error))

    def on_seeds_end(self):
        self.seen.append("seeds end")


def test_points_fire_around_the_routine_and_around_each_item():
    trace = Trace()
    assert list(run_each("seed", (7, 8), trace)) == [7, 8]
    assert trace.seen == [
        ("seeds begin", [7, 8]),
        ("begin", 7, 0, 2),
        ("end", 7),
        ("begin", 8, 1, 2),
        ("end", 8),
        "seeds end",
    ]


def test_without_callbacks_run_each_yields_the_items():
    assert list(run_each("seed", range(3))) == [0, 1, 2]


def test_callbacks_from_a_generator_are_called_for_every_item():
    seen = []
    callbacks = (callback for callback in [LambdaCallback(on_seed_begin=lambda seed: seen.append(seed))])
    assert list(run_each("seed", range(3), callbacks)) == seen == [0, 1, 2]


def test_a_routine_without_items_still_begins_and_ends():
    trace = Trace()
    assert list(run_each("seed", [], trace)) == []
    assert trace.seen == [("seeds begin", []), "seeds end"]


def test_a_break_ends_item_and_routine():
    trace = Trace()
    for seed in run_each("seed", [7, 8], trace):
        if seed == 7:
            break
    assert trace.seen[1:] == [("begin", 7, 0, 2), ("end", 7), "seeds end"]


def test_an_error_in_the_body_ends_item_and_routine_and_propagates():
    trace = Trace()
    with pytest.raises(ValueError, match="diverged"):
        for _ in run_each("seed", [7, 8], trace):
            raise ValueError("diverged")
    assert trace.seen[1:] == [("begin", 7, 0, 2), ("end", 7), "seeds end"]


def test_nested_routines_work_around_a_run():
    class Where(Callback):
        def __init__(self):
            self.now, self.seen = {}, []

        def on_seed_begin(self, seed):
            self.now["seed"] = seed

        def on_fold_begin(self, fold, run):
            self.now["fold"] = fold
            assert run is None

        def on_epoch_end(self, run):
            self.seen.append((self.now["seed"], self.now["fold"], run.name, run.epoch))

    where = Where()
    for seed in run_each("seed", [1, 2], where):
        for fold in run_each("fold", ["a", "b"], where):
            with Loop([where], name=f"{seed}{fold}") as run:
                for _ in run.batches("xy"):
                    pass
            assert current_run() is None
    assert where.seen == [(1, "a", "1a", 1), (1, "b", "1b", 1), (2, "a", "2a", 1), (2, "b", "2b", 1)]


def test_handlers_get_the_current_run():
    seen = []

    class See(Callback):
        def on_seed_begin(self, run):
            seen.append(run)

    with Loop() as run:
        list(run_each("seed", [1], See()))
    assert seen == [run]


@pytest.mark.parametrize("name", ["two words", "", "a-b"])
def test_an_invalid_routine_name_raises(name):
    with pytest.raises(ValueError, match=f"run_each: name must be an identifier such as 'seed' or 'fold', got '{name}'"):
        next(run_each(name, [1]))
