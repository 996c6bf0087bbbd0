from __future__ import annotations

import weakref

import pytest

from hookpoint import Callback, LambdaCallback, Replace
from hookpoint.core.errors import (
    BadValue,
    HookpointError,
    HookpointWarning,
    NotAssignable,
    NotShared,
    OutsideIteration,
    UnknownArgument,
)
from hookpoint.core.loop.loop import Loop

# Given objects


def test_given_objects_are_attributes_of_the_run():
    given = {name: object() for name in ("model", "optimizer", "criterion", "lr_scheduler", "device")}
    with Loop(name="mine", workdir="runs/mine", **given) as run:
        assert {name: getattr(run, name) for name in given} == given
        assert (run.name, run.workdir) == ("mine", "runs/mine")
        assert (run.rank, run.local_rank, run.world_size, run.is_chief) == (0, 0, 1, True)


def test_rank_and_world_size_come_from_the_environment(monkeypatch):
    for name, value in {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    with Loop() as run:
        assert (run.rank, run.local_rank, run.world_size, run.is_chief) == (3, 1, 4, False)


def test_loaders_are_known_once_their_pass_has_begun():
    train, val = ["a"], ["b"]
    with Loop() as run:
        assert (run.train_loader, run.val_loader) == (None, None)
        for _ in run.batches(train):
            for _ in run.batches(val, mode="val"):
                pass
        assert (run.train_loader, run.val_loader) == (train, val)


def test_the_mode_is_that_of_the_innermost_pass():
    seen = []
    with Loop() as run:
        seen.append(run.mode)
        for _ in run.epochs(1):
            seen.append(run.mode)
            for _ in run.batches("a"):
                seen.append(run.mode)
                seen += [run.mode for _ in run.batches("b", mode="val")]
                seen.append(run.mode)
            seen += [run.mode for _ in run.batches("c", mode="pred")]
        seen.append(run.mode)
    assert seen == [None, None, "train", "val", "train", "pred", None]


def test_max_epochs_can_be_read_and_changed_under_both_names():
    with Loop() as run:
        for epoch in run.epochs(5):
            assert run.max_epochs == run.num_epochs
            if epoch == 1:
                run.num_epochs = 2
    assert run.epoch == 2


# This iteration's values


@pytest.mark.parametrize("name", ["batch", "batch_idx", "outputs", "loss", "output"])
def test_reading_an_iteration_value_outside_an_iteration_raises(name):
    with Loop() as run:
        for read in ("before", "after"):
            with pytest.raises(OutsideIteration) as caught:
                getattr(run, name)
            kept = {"output": "outputs", "local_step": "batch_idx"}.get(name, name)
            assert str(caught.value) == (
                f"run.{kept} exists only from on_iter_begin to on_iter_end; no iteration is running.\n"
                f"  store     what later points need: run.store['{kept}'] = ..."
            )
            assert isinstance(caught.value, AttributeError)
            if read == "before":
                for _ in run.batches("a"):
                    getattr(run, name)


@pytest.mark.parametrize("name", ["batch", "outputs", "loss", "output"])
def test_an_iteration_value_can_be_set_only_during_an_iteration(name):
    with Loop() as run:
        for _ in run.batches("ab"):
            setattr(run, name, "mine")
            assert getattr(run, name) == "mine"
        with pytest.raises(OutsideIteration):
            setattr(run, name, "mine")


def test_iteration_values_are_reset_in_the_next_iteration():
    seen = []
    with Loop([LambdaCallback(on_iter_begin=lambda run: seen.append((run.batch, run.outputs, run.loss)))]) as run:
        for _ in run.batches("ab"):
            run.outputs = run.loss = 1
    assert seen == [("a", None, None), ("b", None, None)]


def test_the_loop_body_gets_the_batch_that_a_callback_replaced():
    upper = LambdaCallback(on_iter_begin=lambda run: setattr(run, "batch", run.batch.upper()))
    with Loop([upper]) as run:
        assert list(run.batches("ab")) == ["A", "B"]


@pytest.mark.parametrize("edge", ["on_iter_begin", "on_train_iter_begin", "on_train_iter_end", "on_iter_end"])
def test_iteration_values_exist_at_every_point_of_the_iteration(edge):
    seen = []
    with Loop([LambdaCallback(**{edge: lambda run, batch, batch_idx: seen.append((batch, batch_idx, run.outputs))})]) as run:
        for batch in run.batches("ab"):
            run.outputs = batch * 2
    outputs = [None, None] if edge.endswith("begin") else ["aa", "bb"]
    assert seen == [("a", 0, outputs[0]), ("b", 1, outputs[1])]


POINTS_BETWEEN = ["on_epoch_begin", "on_train_epoch_begin", "on_val_epoch_begin", "on_val_epoch_end", "on_train_epoch_end"]


@pytest.mark.parametrize("point", [*POINTS_BETWEEN, "on_epoch_end", "on_run_end"])
def test_iteration_values_do_not_exist_between_iterations(point):
    seen = []
    look = LambdaCallback(**{point: lambda run: seen.append(hasattr(run, "batch"))})
    with Loop([look]) as run:
        for _ in run.epochs(1):
            for _ in run.batches("a"):
                for _ in run.batches("xy", mode="val"):
                    pass
    assert seen == [False]


def test_no_reference_to_a_batch_is_kept_after_its_iteration():
    class Batch:
        pass

    batches = [Batch()]
    with Loop([Callback()]) as run:
        for batch in run.batches(iter(batches)):
            run.outputs = run.loss = batch
        gone = weakref.ref(batch)
        batches.clear()
        del batch
        assert gone() is None


# What cannot be assigned

SET_STEP = "run.set_step(n) at on_run_begin, to begin a new run at step n"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("stop", 'run.stop is a method and cannot be assigned.\n  call      run.stop("why")'),
        ("request_stop", "run.request_stop is a method and cannot be assigned.\n  call      run.request_stop()"),
        ("log", 'run.log is a method and cannot be assigned.\n  call      run.log("name", value)'),
        ("save", 'run.save is a method and cannot be assigned.\n  call      run.save("tag")'),
        ("stop_epoch", "run.stop_epoch is a method and cannot be assigned.\n  call      run.stop_epoch(...)"),
        ("step", f"run.step is read-only: the loop sets it.\n  call      {SET_STEP}"),
        ("global_step", f"run.global_step is read-only: the loop sets it.\n  call      {SET_STEP}"),
        ("epoch", "run.epoch is read-only: the loop sets it."),
        ("batch_idx", "run.batch_idx is read-only: the loop sets it."),
        ("metrics", "run.metrics is read-only: the loop sets it."),
        ("best", "the run has no attribute 'best'.\n  share     run.store['best'] = value"),
    ],
)
def test_assigning_a_read_only_attribute_raises_with_advice(name, message):
    with Loop() as run:
        for _ in run.batches("a"):
            with pytest.raises(NotAssignable) as caught:
                setattr(run, name, True)
            assert str(caught.value) == message
            assert isinstance(caught.value, AttributeError)
            assert isinstance(caught.value, HookpointError)


def test_reading_an_unknown_attribute_raises_attribute_error():
    with Loop() as run:
        with pytest.raises(AttributeError, match="best"):
            run.best  # noqa: B018
        assert getattr(run, "batch", "default") == "default"


# The store


def test_put_update_get_and_remove_work_on_the_store():
    with Loop() as run:
        run.put("key", 1)
        run.update("key", 2)
        assert (run.get("key"), run.store) == (2, {"key": 2})
        run.store["other"] = None
        assert run.get("other") is None
        run.remove("key")
        assert run.store == {"other": None}


@pytest.mark.parametrize("use", [lambda run: run.get("key"), lambda run: run.remove("key")])
def test_getting_or_removing_a_missing_key_raises(use):
    with Loop() as run:
        run.put("other", 1)
        with pytest.raises(NotShared) as caught:
            use(run)
    assert str(caught.value) == ("run.store has no key 'key'.\n  known     other\n  share     run.put('key', value)")
    assert isinstance(caught.value, KeyError)


def test_a_second_run_shares_nothing_with_the_first():
    loop = Loop()
    with loop as run:
        run.put("key", 1)
        run.original_args().key = 1
    with loop as run:
        assert run.store == {}
        assert "key" not in run.original_args()


def test_summaries_and_update_operations_are_kept_on_the_run():
    def function():
        return 1

    with Loop() as run:
        run.summary("norm", function)
        run.update_op(function)
    assert (run.summaries, run.update_ops) == ({"norm": function}, (function,))


# Custom points


def test_fire_passes_handlers_the_arguments_they_name():
    seen = []

    class See(Callback):
        def on_found(self, run, size, epoch):
            seen.append((run, size, epoch))

        def on_nothing(self):
            seen.append("nothing")

    with Loop([See()]) as run:
        run.fire("on_found", size=3, colour="red")
        run.fire("on_nothing")
        run.fire("on_unheard")
    assert seen == [(run, 3, 0), "nothing"]


def test_fire_returns_the_result_that_handlers_replaced():
    with Loop([LambdaCallback(on_found=lambda result: Replace(result + 1))]) as run:
        assert run.fire("on_found", result=1) == 2


def test_fire_of_a_built_in_point_calls_its_handlers():
    seen = []
    with Loop([LambdaCallback(on_load=lambda path: seen.append(path), on_backward_end=lambda: seen.append("backward"))]) as run:
        run.fire("on_load", path="somewhere")
        run.fire("on_backward_end")
    assert seen == ["somewhere", "backward"]


def test_a_missing_argument_raises_with_the_provided_arguments():
    wrong = LambdaCallback(on_found=lambda colour: None)
    with Loop([wrong]) as run, pytest.raises(UnknownArgument, match=r"'colour'.*\n  provided  epoch, logs, run, size"):
        run.fire("on_found", size=3)


def test_repr_shows_name_epoch_and_step():
    with Loop(name="mine") as run:
        for _ in run.batches("abc"):
            pass
    assert repr(run) == "Run('mine', epoch=1, step=3)"


def test_log_accepts_a_mapping_or_a_pair_with_keywords():
    with Loop() as run:
        run.log({"a": 1}, b=2)
        run.log("c", 3, d=4)
    assert dict(run.metrics) == {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}


@pytest.mark.parametrize("given", [("loss",), (1.0,), ("a", 1, "b")])
def test_log_without_a_value_raises(given):
    with Loop() as run, pytest.raises(BadValue, match=r"no value given\.\n  write     run\.log\(\"name\", value\)"):
        run.log(*given)


@pytest.mark.parametrize("kind", ["image", "histogram", "text", "embedding", "event"])
def test_records_that_no_monitor_receives_after_the_run_warn(monitor, kind):
    with Loop([monitor]) as run:
        pass
    arguments = {"embedding": ([[1.0]],), "event": ()}.get(kind, ([1.0],))
    expected = rf"^run.put_{kind}: the run has ended, so no monitor receives 'test'\."
    with pytest.warns(HookpointWarning, match=expected) as caught:
        getattr(run, f"put_{kind}")("test", *arguments)
    assert [warning.filename for warning in caught] == [__file__]
