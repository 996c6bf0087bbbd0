"""Orca's callbacks run as its users write them: its names, its runner argument, its MainCallback."""

from __future__ import annotations

import weakref

import pytest

from hookpoint import Callback, MainCallBack, MainCallback, errors
from hookpoint.core.loop import Loop

GLOBAL = ("before_run", "after_run", "before_epoch", "after_epoch", "before_iter", "after_iter", "on_iter_forward")
TRAINING = (
    "before_train_epoch",
    "after_train_epoch",
    "before_train_iter",
    "after_train_iter",
    "on_train_forward",
    "on_iter_backward",
    "on_lr_adjust",
)
VALIDATION = ("before_val_epoch", "after_val_epoch", "before_val_iter", "after_val_iter", "on_val_forward")
PREDICTION = ("before_pred_epoch", "after_pred_epoch", "before_pred_iter", "after_pred_iter")
POINTS = GLOBAL + TRAINING + VALIDATION + PREDICTION


class Line:
    """y = weight * x, the smallest model there is."""

    def __init__(self, weight=0.0):
        self.weight = weight
        self.gradient = 0.0

    def __call__(self, inputs):
        self.inputs = inputs
        return [self.weight * x for x in inputs]


class SquaredError:
    """A loss that knows its way back to the model, as a tensor does."""

    def __init__(self, model, outputs, targets):
        self._model = model
        self._differences = [output - target for output, target in zip(outputs, targets, strict=True)]

    def __float__(self):
        return sum(difference**2 for difference in self._differences) / len(self._differences)

    def backward(self):
        pairs = zip(self._differences, self._model.inputs, strict=True)
        self._model.gradient += sum(2 * difference * x for difference, x in pairs) / len(self._differences)


class SGD:
    def __init__(self, model, lr):
        self.model = model
        self.lr = lr
        self.steps = 0

    def zero_grad(self):
        self.model.gradient = 0.0

    def step(self):
        self.steps += 1
        self.model.weight -= self.lr * self.model.gradient


class Halve:
    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self):
        self.optimizer.lr /= 2


TRAIN = [([1.0, 2.0], [3.0, 6.0]), ([3.0, 1.0], [9.0, 3.0])]
VAL = [([2.0], [6.0])]
UNSEEN = [[4.0]]


def parts():
    """What a runner is given, made fresh."""
    model = Line()
    optimizer = SGD(model, lr=0.05)
    return {
        "model": model,
        "optimizer": optimizer,
        "criterion": lambda outputs, targets: SquaredError(model, outputs, targets),
        "lr_scheduler": Halve(optimizer),
    }


def trained_by_hand(epochs):
    """The same training without any callback, for comparison."""
    weight, lr = 0.0, 0.05
    for _ in range(epochs):
        for inputs, targets in TRAIN:
            differences = [weight * x - target for x, target in zip(inputs, targets, strict=True)]
            gradient = sum(2 * difference * x for difference, x in zip(differences, inputs, strict=True)) / len(inputs)
            weight -= lr * gradient
        lr /= 2
    return weight


def drive(callbacks, epochs=1, **given):
    """The training process as Orca assumes it, then one validation and one prediction pass."""
    with Loop(callbacks, **given) as run:
        for _ in run.epochs(epochs):
            for _ in run.batches(TRAIN):
                run.fire("on_train_forward")
                run.fire("on_iter_backward")
            for _ in run.batches(VAL, mode="val"):
                run.fire("on_val_forward")
            run.fire("on_lr_adjust")
        for _ in run.batches(UNSEEN, mode="pred"):
            run.fire("on_pred_forward")


class OrdinaryCallback(Callback):
    """Orca's first listing: points that do nothing by default."""

    def __init__(self):
        self.seen = []

    def on_run_begin(self, runner):
        self.seen.append("on_run_begin")

    def on_run_end(self, runner):
        self.seen.append("on_run_end")

    def on_epoch_begin(self, runner):
        self.seen.append(f"on_epoch_begin {runner.epoch}")

    def on_epoch_end(self, runner):
        self.seen.append(f"on_epoch_end {runner.epoch}")

    def on_iter_begin(self, runner):
        self.seen.append(f"on_iter_begin {runner.batch_idx}")

    def on_iter_end(self, runner):
        self.seen.append(f"on_iter_end {runner.batch_idx}")


class WrittenOut(MainCallback):
    """Orca's second listing: what its MainCallback does by default, written out."""

    def on_iter_forward(self, runner):
        inputs, targets = runner.batch
        runner.outputs = runner.model(inputs)
        inputs, targets = runner.batch
        runner.loss = runner.criterion(runner.outputs, targets)

    def on_iter_backward(self, runner):
        runner.optimizer.zero_grad()
        runner.loss.backward()
        runner.optimizer.step()

    def on_lr_adjust(self, runner):
        if runner.lr_scheduler is not None:
            runner.lr_scheduler.step()

    def on_train_forward(self, runner):
        self.on_iter_forward(runner)

    def on_val_forward(self, runner):
        self.on_iter_forward(runner)


class CustomMainCB(MainCallBack):
    """Orca's third listing: a model that returns its losses."""

    def on_iter_forward(self, runner):
        image, target = runner.batch
        runner.output = runner.model(image, target)
        runner.loss = sum(loss for loss in runner.output.values())


class AllPoints(MainCallback):
    """All 23 points by their names; each says that it was called, and the starred ones also do their work."""

    def __init__(self):
        self.seen = []

    def before_run(self, runner):
        self.seen.append("before_run")

    def after_run(self, runner):
        self.seen.append("after_run")

    def before_epoch(self, runner):
        self.seen.append("before_epoch")

    def after_epoch(self, runner):
        self.seen.append("after_epoch")

    def before_iter(self, runner):
        self.seen.append("before_iter")

    def after_iter(self, runner):
        self.seen.append("after_iter")

    def on_iter_forward(self, runner):
        self.seen.append("on_iter_forward")
        super().on_iter_forward(runner)

    def before_train_epoch(self, runner):
        self.seen.append("before_train_epoch")

    def after_train_epoch(self, runner):
        self.seen.append("after_train_epoch")

    def before_train_iter(self, runner):
        self.seen.append("before_train_iter")

    def after_train_iter(self, runner):
        self.seen.append("after_train_iter")

    def on_train_forward(self, runner):
        self.seen.append("on_train_forward")
        super().on_train_forward(runner)

    def on_iter_backward(self, runner):
        self.seen.append("on_iter_backward")
        super().on_iter_backward(runner)

    def on_lr_adjust(self, runner):
        self.seen.append("on_lr_adjust")
        super().on_lr_adjust(runner)

    def before_val_epoch(self, runner):
        self.seen.append("before_val_epoch")

    def after_val_epoch(self, runner):
        self.seen.append("after_val_epoch")

    def before_val_iter(self, runner):
        self.seen.append("before_val_iter")

    def after_val_iter(self, runner):
        self.seen.append("after_val_iter")

    def on_val_forward(self, runner):
        self.seen.append("on_val_forward")
        super().on_val_forward(runner)

    def before_pred_epoch(self, runner):
        self.seen.append("before_pred_epoch")

    def after_pred_epoch(self, runner):
        self.seen.append("after_pred_epoch")

    def before_pred_iter(self, runner):
        self.seen.append("before_pred_iter")

    def after_pred_iter(self, runner):
        self.seen.append("after_pred_iter")


def test_ordinary_callback_is_called_at_its_points():
    callback = OrdinaryCallback()
    with Loop([callback]) as run:
        for _ in run.epochs(2):
            for _ in run.batches(TRAIN[:1]):
                pass
    assert callback.seen == [
        "on_run_begin",
        "on_epoch_begin 1",
        "on_iter_begin 0",
        "on_iter_end 0",
        "on_epoch_end 1",
        "on_epoch_begin 2",
        "on_iter_begin 0",
        "on_iter_end 0",
        "on_epoch_end 2",
        "on_run_end",
    ]


def test_there_are_23_points():
    assert len(set(POINTS)) == 23
    assert set(POINTS) <= set(dir(AllPoints))


def test_all_23_points_fire_in_order():
    main = AllPoints()
    drive([main], **parts())
    train_iter = [
        "before_iter",
        "before_train_iter",
        "on_train_forward",
        "on_iter_forward",
        "on_iter_backward",
        "after_train_iter",
        "after_iter",
    ]
    val_iter = ["before_iter", "before_val_iter", "on_val_forward", "on_iter_forward", "after_val_iter", "after_iter"]
    pred_iter = ["before_iter", "before_pred_iter", "after_pred_iter", "after_iter"]
    assert main.seen == [
        "before_run",
        *("before_epoch", "before_train_epoch", *train_iter, *train_iter, "after_train_epoch", "after_epoch"),
        *("before_epoch", "before_val_epoch", *val_iter, "after_val_epoch", "after_epoch"),
        "on_lr_adjust",
        *("before_epoch", "before_pred_epoch", *pred_iter, "after_pred_epoch", "after_epoch"),
        "after_run",
    ]
    assert set(main.seen) == set(POINTS)


def test_default_main_callback_does_what_orca_writes_out():
    by_default, written_out = parts(), parts()
    drive([MainCallback()], epochs=3, **by_default)
    drive([WrittenOut()], epochs=3, **written_out)
    assert by_default["model"].weight == written_out["model"].weight
    assert by_default["model"].weight == trained_by_hand(epochs=3)
    assert by_default["optimizer"].steps == 6
    assert by_default["optimizer"].lr == 0.05 / 8


def test_pseudo_code_may_fire_on_iter_forward_itself():
    given = parts()
    with Loop([MainCallback()], **given) as run:
        for _ in run.epochs(1):
            for _ in run.batches(TRAIN):
                run.fire("on_iter_forward")
                run.fire("on_iter_backward")
    assert given["optimizer"].steps == 2


def test_without_a_scheduler_lr_adjust_does_nothing():
    given = parts()
    drive([MainCallback()], **{**given, "lr_scheduler": None})
    assert given["optimizer"].lr == 0.05


def test_custom_main_callback_may_write_runner_output():
    seen = []

    class Watch(Callback):
        def after_train_iter(self, runner):
            seen.append((runner.outputs, runner.loss))

    def detector(image, target):
        return {"box": abs(image - target), "label": 1.0}

    with Loop([CustomMainCB(), Watch()], model=detector) as run:
        for _ in run.epochs(1):
            for _ in run.batches([(2.0, 5.0)]):
                run.fire("on_train_forward")
                assert run.output is run.outputs
    assert seen == [({"box": 3.0, "label": 1.0}, 4.0)]


def test_both_spellings_of_main_callback_are_one_class():
    assert MainCallBack is MainCallback


def test_values_of_an_iteration_are_gone_after_it():
    at_begin = []

    class Look(Callback):
        def before_iter(self, runner):
            at_begin.append((runner.batch_idx, runner.outputs, runner.loss))

        def after_iter(self, runner):
            assert runner.outputs == runner.loss == runner.batch * 10

    with Loop([Look()]) as run:
        for _ in run.epochs(1):
            for batch in run.batches([1, 2]):
                run.outputs = run.loss = batch * 10
            for name in ("batch", "batch_idx", "outputs", "loss"):
                assert not hasattr(run, name)
                with pytest.raises(
                    errors.OutsideIteration, match=f"run.{name} is there from on_iter_begin to on_iter_end only"
                ):
                    getattr(run, name)
    assert at_begin == [(0, None, None), (1, None, None)]


def test_a_finished_iteration_keeps_no_batch_alive():
    class Batch(list):
        """A list that can be watched."""

    alive = []

    def loader():
        for number in range(3):
            batch = Batch([number])
            alive.append(weakref.ref(batch))
            yield batch
            del batch

    with Loop() as run:
        for _ in run.epochs(1):
            for batch in run.batches(loader()):
                run.outputs = batch
                del batch
                assert [reference() for reference in alive[:-1]] == [None] * (len(alive) - 1)
            assert alive[-1]() is None


def test_a_second_main_callback_is_refused():
    with pytest.raises(errors.MainPointTaken, match="two MainCallbacks: MainCallback and WrittenOut; a step is computed once"):
        Loop([MainCallback(), WrittenOut()])


@pytest.mark.parametrize("point", ["on_iter_forward", "on_train_forward", "on_val_forward", "on_iter_backward", "on_lr_adjust"])
def test_starred_points_are_refused_elsewhere(point):
    stray = type("Stray", (Callback,), {point: lambda self, runner: None})
    with pytest.raises(errors.MainPointTaken, match=f"Stray.{point} belongs to the MainCallback alone"):
        Loop([stray()])


def test_main_callback_comes_first_wherever_it_stands():
    order = []

    class Ordinary(Callback):
        def before_iter(self, runner):
            order.append("ordinary")

    class Main(MainCallback):
        def before_iter(self, runner):
            order.append("main")

    with Loop([Ordinary(), Main()]) as run:
        for _ in run.batches([1]):
            pass
    assert order == ["main", "ordinary"]


def test_pocket_of_the_runner():
    with Loop() as run:
        run.put("best", 1)
        run.update("best", 2)
        assert run.get("best") == run.store["best"] == 2
        run.remove("best")
        with pytest.raises(KeyError, match="nothing is shared under 'best'"):
            run.get("best")
