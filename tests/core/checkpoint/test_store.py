from __future__ import annotations

import pytest

from hookpoint import Callback, Every, LambdaCallback, Store
from hookpoint.core.errors import NothingToSaveTo
from hookpoint.core.loop.loop import Loop


class Memory:
    """A store that keeps states in a list."""

    def __init__(self):
        self.saved = []

    def save(self, state, *, step, tags):
        self.saved.append((step, list(tags), state))
        return f"memory/{len(self.saved)}"

    @property
    def tags(self):
        return [(step, tags) for step, tags, _ in self.saved]


class Saver(Callback):
    """Request a checkpoint, and record where it was written."""

    def __init__(self, tag, point="on_trigger"):
        super().__init__(name=f"saver of {tag}")
        setattr(self, point, lambda run: run.save(tag))
        self.paths = []

    def on_save(self, run, path):
        self.paths.append((run.step, path))


class Stepping:
    """An optimizer with a step hook."""

    def register_step_post_hook(self, hook):
        self.hook = hook
        return self

    def remove(self):
        self.hook = None

    def step(self):
        self.hook(self, (), {})


def test_requests_at_one_point_become_one_checkpoint_after_the_last_handler(train):
    memory, seen = Memory(), []
    store: Store = memory
    last = LambdaCallback(on_epoch_end=lambda: seen.append(list(memory.saved)))
    train([Saver("last"), Saver("best"), Saver("last"), last], epochs=2, batches="ab", store=store)
    assert memory.tags == [(2, ["last", "best"]), (4, ["last", "best"])]
    assert [len(saved) for saved in seen] == [0, 1]


def test_on_save_gets_the_path_once_per_checkpoint(train):
    first, second = Saver("a"), Saver("b")
    train([first, second], epochs=2, batches="ab", store=Memory())
    assert first.paths == second.paths == [(2, "memory/1"), (4, "memory/2")]


@pytest.mark.parametrize(
    ("point", "saved"),
    [
        ("on_run_begin", [(1, ["x"])]),
        ("on_epoch_begin", [(1, ["x"])]),
        ("on_iter_begin", [(1, ["x"]), (2, ["x"])]),
        ("on_train_iter_end", [(1, ["x"]), (2, ["x"])]),
        ("on_train_epoch_end", [(2, ["x"])]),
        ("on_epoch_end", [(2, ["x"])]),
        ("on_run_end", [(2, ["x"])]),
    ],
)
def test_a_checkpoint_is_written_at_the_next_end_of_an_iteration_epoch_or_run(point, saved, train):
    memory = Memory()
    train([Saver("x", point)], batches="ab", store=memory)
    assert memory.tags == saved


def test_the_loop_body_can_request_a_checkpoint():
    memory = Memory()
    with Loop(store=memory) as run:
        for batch in run.batches("abc"):
            if batch == "b":
                run.save()
                assert memory.saved == []
    assert memory.tags == [(2, ["manual"])]


def test_a_checkpoint_waits_for_an_optimizer_step():
    memory, optimizer = Memory(), Stepping()
    saver = Saver("x").when(Every(iterations=1))
    with Loop([saver], store=memory, optimizer=optimizer) as run:
        for _ in run.batches("abcde"):
            if run.batch_idx % 3 == 1:
                optimizer.step()
    assert [(step, state["clocks"]["iteration"]) for step, _, state in memory.saved] == [(1, 2), (2, 5)]


@pytest.mark.parametrize("point", ["on_val_iter_end", "on_val_epoch_end"])
def test_validation_inside_an_iteration_is_not_a_step_boundary(point):
    memory = Memory()
    with Loop([Saver("x", point)], store=memory) as run:
        for batch in run.batches("ab"):
            for _ in run.batches("xy", mode="val"):
                pass
            assert len(memory.saved) == "ab".index(batch)
    assert memory.tags == [(1, ["x"]), (2, ["x"])]


def test_the_state_is_taken_when_the_checkpoint_is_written():
    class Counting(Callback):
        count = 0

        def on_iter_end(self, run):
            self.count += 1
            if run.step == 2:
                run.save("two")

        def state_dict(self):
            return {"count": self.count}

    class Late(Counting):
        def on_iter_end(self, run):
            self.count += 1

    memory = Memory()
    with Loop([Counting(), Late()], store=memory) as run:
        for _ in run.batches("abc"):
            pass
    ((_, _, state),) = memory.saved
    assert state["clocks"]["step"] == 2
    assert {name: kept["state"] for name, kept in state["callbacks"].items()} == {
        "Counting": {"count": 2},
        "Late": {"count": 2},
    }


def test_a_failed_run_is_not_saved_when_it_ends():
    memory = Memory()
    with pytest.raises(ValueError, match="nan"), Loop(store=memory) as run:
        for _ in run.batches("ab"):
            run.save("x")
            raise ValueError("nan")
    assert memory.saved == []


def test_a_failing_store_fails_the_run():
    class Full:
        def save(self, state, *, step, tags):
            raise OSError("disk is full")

    with pytest.raises(OSError, match="disk is full"), Loop([Saver("x")], store=Full()) as run:
        for _ in run.epochs(2):
            pass
    assert run.epoch == 1


def test_a_store_failing_at_run_end_fails_the_run_after_all_callbacks():
    class Full:
        def save(self, state, *, step, tags):
            raise OSError("disk is full")

    seen = []
    ends = LambdaCallback(on_run_end=lambda: seen.append("end"))
    with pytest.raises(OSError, match="disk is full"), Loop([Saver("x", "on_run_end"), ends], store=Full()):
        pass
    assert seen == ["end"]


def test_each_checkpoint_is_logged_as_an_event(monitor):
    with Loop([Saver("x"), monitor], store=Memory()) as run:
        for _ in run.epochs(1):
            pass
    assert monitor.events("save") == [{"path": "memory/1", "tags": ["x"]}]


def test_saving_without_a_store_raises():
    with Loop() as run, pytest.raises(NothingToSaveTo) as caught:
        run.save("best")
    assert str(caught.value) == 'run.save() has nowhere to save to.\n  give      workdir="runs/name", or a store'
    assert isinstance(caught.value, RuntimeError)
