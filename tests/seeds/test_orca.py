"""Orca callbacks run unchanged, with its names, its runner argument and its MainCallback."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn

from hookpoint import Callback, Every, MainCallBack, MainCallback, Runner, errors
from hookpoint.core.loop.loop import Loop

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
    """y = weight * x, the smallest possible model."""

    def __init__(self, weight=0.0):
        self.weight = weight
        self.gradient = 0.0

    def __call__(self, inputs):
        self.inputs = inputs
        return [self.weight * x for x in inputs]


class SquaredError:
    """A loss with a backward pass to the model, like a tensor."""

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
    """Return new arguments for a runner."""
    model = Line()
    optimizer = SGD(model, lr=0.05)
    return {
        "model": model,
        "optimizer": optimizer,
        "criterion": lambda outputs, targets: SquaredError(model, outputs, targets),
        "lr_scheduler": Halve(optimizer),
    }


def trained_by_hand(epochs):
    """Run the same training without callbacks, for comparison."""
    weight, lr = 0.0, 0.05
    for _ in range(epochs):
        for inputs, targets in TRAIN:
            differences = [weight * x - target for x, target in zip(inputs, targets, strict=True)]
            gradient = sum(2 * difference * x for difference, x in zip(differences, inputs, strict=True)) / len(inputs)
            weight -= lr * gradient
        lr /= 2
    return weight


def drive(callbacks, epochs=1, **given):
    """Run the training process that Orca assumes, then one prediction pass."""
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
    """All 23 points by name; each records its call, and the points with a default implementation also run it."""

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


def test_default_main_callback_equals_orcas_listing():
    by_default, written_out = parts(), parts()
    drive([MainCallback()], epochs=3, **by_default)
    drive([WrittenOut()], epochs=3, **written_out)
    assert by_default["model"].weight == written_out["model"].weight
    assert by_default["model"].weight == trained_by_hand(epochs=3)
    assert by_default["optimizer"].steps == 6
    assert by_default["optimizer"].lr == 0.05 / 8


def test_a_loop_may_fire_on_iter_forward_itself():
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


def test_values_of_an_iteration_are_removed_after_it():
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
                with pytest.raises(errors.OutsideIteration, match=f"run.{name} exists only from on_iter_begin to on_iter_end"):
                    getattr(run, name)
    assert at_begin == [(0, None, None), (1, None, None)]


def test_a_finished_iteration_keeps_no_batch_alive():
    class Batch(list):
        """A list that supports weak references."""

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


def test_a_second_main_callback_raises():
    with pytest.raises(errors.MainPointTaken, match="two MainCallbacks: MainCallback and WrittenOut; a run has only one"):
        Loop([MainCallback(), WrittenOut()])


@pytest.mark.parametrize("point", ["on_iter_forward", "on_train_forward", "on_val_forward", "on_iter_backward", "on_lr_adjust"])
def test_main_points_in_an_ordinary_callback_raise(point):
    stray = type("Stray", (Callback,), {point: lambda self, runner: None})
    with pytest.raises(errors.MainPointTaken, match=f"Stray.{point} is reserved for the MainCallback"):
        Loop([stray()])


def test_main_callback_runs_first_at_any_position():
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


def test_the_runner_stores_values_for_callbacks():
    with Loop() as run:
        run.put("best", 1)
        run.update("best", 2)
        assert run.get("best") == run.store["best"] == 2
        run.remove("best")
        with pytest.raises(KeyError, match=r"run\.store has no key 'best'"):
            run.get("best")


# The same on the runner, with torch

HOST = {"device": "cpu"}
QUIET = {"extra_callbacks": [], "monitors": [], **HOST}


def tensors(number=3):
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(4, 3, generator=generator), torch.randn(4, 2, generator=generator)) for _ in range(number)]


def torch_parts(model=None):
    """Return a model, its optimizer, a criterion and a scheduler, identical in each call."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, nn.MSELoss(), torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)


def fitted(*callbacks, epochs=3, val=None, **options):
    """Fit, and return the model."""
    model, optimizer, criterion, scheduler = torch_parts()
    runner = Runner(model, optimizer, criterion, lr_scheduler=scheduler, callbacks=callbacks, **QUIET, **options)
    runner.fit(tensors(), val, epochs=epochs)
    return model


def test_the_runner_calls_an_ordinary_callback_at_its_points():
    callback = OrdinaryCallback()
    fitted(callback, epochs=2)
    iterations = [f"on_iter_{edge} {number}" for number in range(3) for edge in ("begin", "end")]
    assert callback.seen == [
        "on_run_begin",
        *["on_epoch_begin 1", *iterations, "on_epoch_end 1"],
        *["on_epoch_begin 2", *iterations, "on_epoch_end 2"],
        "on_run_end",
    ]


class PseudoCode(MainCallback):
    """The hooks of Orca's pseudocode; each records its call and the attributes that exist at that time."""

    def __init__(self):
        self.seen = []

    def say(self, runner, hook):
        present = [name for name in ("batch", "batch_idx", "outputs", "loss") if getattr(runner, name, None) is not None]
        self.seen.append((hook, runner.epoch, *present))

    def on_run_begin(self, runner):
        self.say(runner, "on_run_begin")

    def on_epoch_begin(self, runner):
        self.say(runner, "on_epoch_begin")

    def on_iter_begin(self, runner):
        self.say(runner, "on_iter_begin")

    def on_iter_forward(self, runner):
        super().on_iter_forward(runner)
        self.say(runner, "on_iter_forward")

    def on_iter_backward(self, runner):
        super().on_iter_backward(runner)
        self.say(runner, "on_iter_backward")

    def on_iter_end(self, runner):
        self.say(runner, "on_iter_end")

    def on_lr_adjust(self, runner):
        super().on_lr_adjust(runner)
        self.say(runner, "on_lr_adjust")

    def on_epoch_end(self, runner):
        self.say(runner, "on_epoch_end")

    def on_run_end(self, runner):
        self.say(runner, "on_run_end")


def test_the_runner_follows_orcas_pseudocode():
    main = PseudoCode()
    fitted(main, epochs=2)

    def epoch(number):
        iteration = [
            ("on_iter_begin", number, "batch", "batch_idx"),
            ("on_iter_forward", number, "batch", "batch_idx", "outputs", "loss"),
            ("on_iter_backward", number, "batch", "batch_idx", "outputs", "loss"),
            ("on_iter_end", number, "batch", "batch_idx", "outputs", "loss"),
        ]
        return [("on_epoch_begin", number), *iteration * 3, ("on_lr_adjust", number), ("on_epoch_end", number)]

    assert main.seen == [("on_run_begin", 0), *epoch(1), *epoch(2), ("on_run_end", 2)]


def test_the_runner_fires_all_23_points_in_order():
    main = AllPoints()
    model, optimizer, criterion, scheduler = torch_parts()
    runner = Runner(model, optimizer, criterion, lr_scheduler=scheduler, callbacks=[main], **QUIET)
    runner.fit(tensors(2), tensors(1), epochs=1)
    runner.predict(tensors(1))
    train_iter = [
        *["before_iter", "before_train_iter", "on_train_forward", "on_iter_forward", "on_iter_backward"],
        *["after_train_iter", "after_iter"],
    ]
    val_iter = ["before_iter", "before_val_iter", "on_val_forward", "on_iter_forward", "after_val_iter", "after_iter"]
    pred_iter = ["before_iter", "before_pred_iter", "after_pred_iter", "after_iter"]
    assert main.seen == [
        "before_run",
        *("before_epoch", "before_train_epoch", *train_iter, *train_iter, "after_train_epoch", "after_epoch"),
        *("before_epoch", "before_val_epoch", *val_iter, "after_val_epoch", "after_epoch"),
        *("on_lr_adjust", "after_run"),
        *("before_epoch", "before_pred_epoch", *pred_iter, "after_pred_epoch", "after_epoch"),
    ]


def test_the_runner_trains_like_orcas_listing_by_default():
    model, optimizer, criterion, scheduler = torch_parts()
    for _ in range(3):
        for inputs, targets in tensors():
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            optimizer.step()
        scheduler.step()
    for trained in (fitted(), fitted(MainCallback()), fitted(WrittenOut()), fitted(WrittenOut(), val=tensors())):
        assert torch.equal(trained.weight, model.weight)


class Detector(nn.Module):
    """A detector as in torchvision: takes images and targets, returns a dict of losses."""

    def __init__(self):
        super().__init__()
        self.box, self.label = nn.Linear(3, 4), nn.Linear(3, 1)

    def forward(self, images, targets):
        features = torch.stack([image.mean((1, 2)) for image in images])
        boxes = torch.stack([target["boxes"] for target in targets])
        labels = torch.stack([target["labels"] for target in targets])
        return {
            "loss_box_reg": nn.functional.l1_loss(self.box(features), boxes),
            "loss_classifier": nn.functional.binary_cross_entropy_with_logits(self.label(features), labels),
        }


def detections(number=2):
    generator = torch.Generator().manual_seed(1)
    return [
        (
            [torch.rand(3, 4 + size, 5, generator=generator) for size in range(2)],
            [{"boxes": torch.rand(4, generator=generator), "labels": torch.ones(1)} for _ in range(2)],
        )
        for _ in range(number)
    ]


def test_custom_main_callback_trains_a_model_that_returns_its_losses():
    seen = []

    class Watch(Callback):
        def after_train_iter(self, runner):
            seen.append((sorted(runner.output), runner.loss.item()))

    model, optimizer, _, _ = torch_parts(Detector())
    by_hand, other, _, _ = torch_parts(Detector())
    by_hand.load_state_dict(model.state_dict())

    run = Runner(model, optimizer, callbacks=[CustomMainCB(), Watch()], **QUIET).fit(detections(), detections(), epochs=2)
    losses = []
    for _ in range(2):
        for images, targets in detections():
            other.zero_grad()
            loss = sum(loss for loss in by_hand(images, targets).values())
            loss.backward()
            other.step()
            losses.append(loss.item())

    assert seen == [(["loss_box_reg", "loss_classifier"], loss) for loss in losses]
    assert torch.equal(model.box.weight, by_hand.box.weight)
    assert run.metrics["val_loss"] > 0


def test_default_main_callback_trains_a_model_that_returns_its_losses():
    models = []
    for callbacks in ([CustomMainCB()], []):
        model, optimizer, _, _ = torch_parts(Detector())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(0.1)
        Runner(model, optimizer, callbacks=callbacks, **QUIET).fit(detections(), epochs=2)
        models.append(model)
    assert torch.equal(models[0].box.weight, models[1].box.weight)


class Alive(Callback):
    """Keep weak references to the values of iterations, and count at later points how many are still alive."""

    def __init__(self):
        self.references, self.at = [], {}

    def watch(self, runner):
        inputs, targets = runner.batch
        self.references += [weakref.ref(thing) for thing in (inputs, targets, runner.outputs, runner.loss)]

    def count(self, point):
        self.at.setdefault(point, set()).add(sum(reference() is not None for reference in self.references))

    def after_train_iter(self, runner):
        self.watch(runner)

    def after_val_iter(self, runner):
        self.watch(runner)

    def before_iter(self, runner):
        self.count(f"before an iteration, in {runner.mode}")

    def before_val_epoch(self, runner):
        self.count("before validation")

    def on_train_epoch_end(self, runner):
        self.count("after training")

    def on_epoch_end(self, runner):
        self.count("after the epoch")

    def on_run_end(self, runner):
        self.count("after the run")


def fresh(number=3):
    """Yield new batches in every epoch, without other references to them."""

    class Fresh:
        def __iter__(self):
            return (tuple(torch.randn(4, width) for width in (3, 2)) for _ in range(number))

    return Fresh()


def mean_distance(outputs, targets):
    return (outputs - targets).abs().mean()


class WithWindows(WrittenOut):
    """The default written out for accumulated gradients."""

    def on_iter_backward(self, runner):
        runner.backward()
        runner.optimizer_step()


@pytest.mark.parametrize(("main", "accumulate"), [(MainCallback, 1), (MainCallback, 2), (WrittenOut, 1), (WithWindows, 2)])
@pytest.mark.parametrize("defaults", [False, True], ids=["quiet", "with default callbacks"])
def test_values_of_an_iteration_are_freed_before_the_next_and_validation(main, defaults, accumulate):
    alive = Alive()
    model, optimizer, criterion, _ = torch_parts()
    options = HOST if defaults else QUIET
    runner = Runner(
        model,
        optimizer,
        criterion,
        callbacks=[main(), alive],
        metrics={"distance": mean_distance},
        accumulate=accumulate,
        log_every=2,
        **options,
    )
    runner.fit(fresh(), fresh(), epochs=2)
    assert len(alive.references) == 2 * (3 + 3) * 4
    assert alive.at == {
        "before an iteration, in train": {0},
        "before an iteration, in val": {0},
        "before validation": {0},
        "after training": {0},
        "after the epoch": {0},
        "after the run": {0},
    }


def test_validation_within_an_epoch_keeps_only_the_current_training_batch():
    alive = Alive()
    model, optimizer, criterion, _ = torch_parts()
    runner = Runner(model, optimizer, criterion, callbacks=[alive], **QUIET)
    runner.fit(fresh(), fresh(), epochs=1, validate_every=Every(steps=1))
    assert alive.at["before an iteration, in train"] == {0}
    assert alive.at["before an iteration, in val"] == {4}  # validation runs at the end of an iteration that is still open


def test_the_runner_removes_values_of_an_iteration_after_it():
    class Look(Callback):
        def after_train_epoch(self, runner):
            for name in ("batch", "batch_idx", "output", "outputs", "loss", "target"):
                assert not hasattr(runner, name)
            seen.append(runner.epoch)

    seen = []
    fitted(Look(), epochs=2)
    assert seen == [1, 2]
