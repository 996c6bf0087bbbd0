"""HostDriver: another library's trainer drives the callbacks, which see the same as in a Runner."""

from __future__ import annotations

import signal

import pytest
import torch

from hookpoint import Callback, Every, HookedLoader, LambdaCallback, Runner, StopRun, on
from hookpoint import callbacks as cb
from hookpoint.core.errors import BadLoop, HookpointWarning, OutsideRun
from hookpoint.core.hooks.costs import FIRST_SAMPLE
from hookpoint.core.loop.host import Host, NotUnderHost
from hookpoint.core.loop.host_driver import HostDriver

POINTS = [
    "on_setup",
    "on_run_begin",
    "on_epoch_begin",
    "on_train_epoch_begin",
    "on_iter_begin",
    "on_train_iter_begin",
    "on_backward_begin",
    "on_backward_end",
    "on_step_begin",
    "on_step_end",
    "on_train_iter_end",
    "on_iter_end",
    "on_train_epoch_end",
    "on_val_epoch_begin",
    "on_val_iter_begin",
    "on_val_iter_end",
    "on_val_epoch_end",
    "on_lr_adjust",
    "on_epoch_end",
    "on_load",
    "on_exception",
    "on_run_end",
]


class Record(Callback):
    """What a callback sees at each point: the point, the clocks, the mode, the batch, and the latest validation loss."""

    def __init__(self):
        super().__init__()
        self.seen = []
        for point in POINTS:
            if point != "on_lr_adjust":
                setattr(self, point, self._note(point))

    def _note(self, point):
        def note(run):
            idx = run.batch_idx if hasattr(run, "batch_idx") else None
            is_known = "val_loss" in run.metrics and (run.mode != "val" or "iter" not in point)  # unknown to a host in the pass
            val_loss = round(run.metrics["val_loss"], 5) if is_known else None
            self.seen.append((point, run.epoch, run.iteration, run.step, run.mode, idx, run.samples, val_loss))

        return note


class Net(torch.nn.Linear):
    def __init__(self):
        torch.manual_seed(0)
        super().__init__(2, 1)


def data(batches=6, size=3, seed=1):
    made = torch.Generator().manual_seed(seed)
    return [(torch.rand(size, 2, generator=made), torch.rand(size, 1, generator=made)) for _ in range(batches)]


TRAIN, VAL = data(), data(2, 4, seed=2)


class Trainer:
    """A trainer with its own loop, as in other libraries, that reports its events to a driver."""

    def __init__(self, callbacks, *, accumulate=1, validate_at=(), **options):
        self.model = Net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.accumulate, self.validate_at = accumulate, validate_at
        self.driver = HostDriver(callbacks, Host("Trainer"), **options)
        self.kept = {}

    def fit(self, epochs, *, found=None, keep_at=None):
        driver = self.driver
        epoch, batch = (0, 0) if found is None else found["place"]
        if found is not None:
            self.model.load_state_dict(found["model"])
        driver.start_run(
            model=self.model, optimizer=self.optimizer, epochs=epochs, state=None if found is None else found["callbacks"]
        )
        try:
            while epoch < epochs and not driver.wants_stop:
                driver.start_epoch()
                if batch is not None:
                    self._train(epoch, batch, keep_at)
                    if not driver.wants_stop:
                        self._validate()
                        self._keep(keep_at, (epoch, None))
                driver.finish_epoch()
                epoch, batch = epoch + 1, 0
                self._keep(keep_at, (epoch, 0))
        except BaseException as error:
            driver.finish_run(error)
            raise
        driver.finish_run()
        return self

    def _train(self, epoch, first, keep_at):
        driver = self.driver
        driver.start_pass("train", total=len(TRAIN))
        for number, batch in enumerate(TRAIN):
            if number < first:
                continue
            driver.start_iteration(batch)
            loss = torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])
            driver.fire("on_backward_begin")
            (loss / self.accumulate).backward()
            driver.fire("on_backward_end")
            if (number + 1) % self.accumulate == 0 or number + 1 == len(TRAIN):
                driver.start_step()
                self.optimizer.step()
                driver.finish_step()
                self.optimizer.zero_grad()
            driver.finish_iteration(loss=loss)
            if number + 1 in self.validate_at:
                self._validate()
            self._keep(keep_at, (epoch, number + 1))
            if driver.wants_end_pass:
                break
        driver.finish_pass()

    def _validate(self):
        driver, losses = self.driver, []
        driver.start_pass("val", total=len(VAL))
        with torch.no_grad():
            for batch in VAL:
                driver.start_iteration(batch)
                losses.append(torch.nn.functional.mse_loss(self.model(batch[0]), batch[1]))
                driver.finish_iteration()
        driver.finish_pass({"loss": float(sum(losses)) / len(losses)})

    def _keep(self, keep_at, place):
        if place == keep_at:
            weights = {name: value.clone() for name, value in self.model.state_dict().items()}
            self.kept = {"place": place, "model": weights, "callbacks": self.driver.state()}


def in_a_runner(callbacks, epochs=3, *, workdir=None, validate_every=None, **options):
    model = Net()
    runner = Runner(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        torch.nn.functional.mse_loss,
        callbacks=callbacks,
        extra_callbacks=[],
        monitors=[],
        device="cpu",
        workdir=workdir,
        **options,
    )
    runner.fit(TRAIN, VAL, epochs=epochs, validate_every=validate_every)
    return model


def recorded(run, *callbacks):
    """Run with a record in the list of callbacks; return what it saw, and the error."""
    record = Record()
    try:
        run([record, *callbacks])
    except ValueError as error:
        return record.seen, str(error)
    return record.seen, None


def compared(*callbacks, make=lambda: (), epochs=3, runner=None, trainer=None):
    ours, raised = recorded(lambda listed: in_a_runner([*listed, *make()], epochs, **(runner or {})))
    theirs, raised_there = recorded(lambda listed: Trainer([*listed, *make()], **(trainer or {})).fit(epochs))
    assert theirs == ours
    assert raised_there == raised
    return ours


def stop_at(point, when):
    return on(point)(lambda run: run.stop("enough") if when(run) else None)


def test_a_run_is_seen_as_in_a_runner():
    seen = compared()
    assert len(seen) == 189
    assert seen[-1] == ("on_run_end", 3, 18, 18, None, None, 54, seen[-1][-1])


def test_an_accumulating_run_is_seen_as_in_a_runner():
    compared(runner={"accumulate": 4}, trainer={"accumulate": 4})


def test_a_stop_in_a_batch_is_seen_as_in_a_runner():
    seen = compared(make=lambda: [stop_at("on_train_iter_end", lambda run: run.iteration == 8)])
    assert seen[-1][1:4] == (2, 8, 8)


def test_a_stop_at_the_end_of_an_epoch_is_seen_as_in_a_runner():
    seen = compared(make=lambda: [stop_at("on_epoch_end", lambda run: run.epoch == 2)])
    assert seen[-1][1:4] == (2, 12, 12)


def test_an_error_in_a_callback_is_seen_as_in_a_runner():
    def fail(run):
        if run.iteration == 7:
            raise ValueError("no more")

    seen = compared(make=lambda: [on("on_train_iter_end")(fail)])
    assert [one[0] for one in seen[-2:]] == ["on_exception", "on_run_end"]


@pytest.mark.parametrize("at", [7, FIRST_SAMPLE])
@pytest.mark.parametrize("when", [None, Every(steps=1)])
def test_stop_run_is_a_request_and_never_raised_in_the_host(at, when):
    def stop(run):
        if run.iteration == at:
            raise StopRun("enough")

    record, later = Record(), Record()
    Trainer([record, on("on_train_iter_end", when=when)(stop), later]).fit(3)
    assert record.seen[-1][:4] == ("on_run_end", 2, at, at)
    assert later.seen == record.seen  # the callbacks after it were called at that point too


class Skipping(Callback):
    def on_iter_begin(self, run):
        if run.mode == "train" and run.batch_idx == 1:
            run.skip_batch()


def test_a_host_that_can_skip_is_told_which_batches_to_compute():
    driver, skipped = HostDriver([Skipping()], Host("Trainer", can=frozenset(["skip_batch"]))), []
    driver.start_run()
    driver.start_epoch()
    driver.start_pass("train")
    for number in range(3):
        if driver.start_iteration([number]):
            driver.finish_step()
            driver.finish_iteration(loss=1.0)
        else:
            skipped.append(number)
            with pytest.raises(BadLoop, match="no iteration is open"):
                driver.finish_iteration(loss=1.0)
    assert (skipped, driver.run.iteration, driver.run.step) == ([1], 2, 2)
    driver.finish_run()


def test_skip_batch_raises_under_a_host_that_does_not_support_it():
    driver = HostDriver([Skipping()], Host("Trainer"))
    driver.start_run()
    driver.start_epoch()
    driver.start_pass("train")
    driver.start_iteration([0])
    driver.finish_iteration()
    with pytest.raises(NotUnderHost, match=r"run\.skip_batch\(\) does not work under Trainer: it computes every batch"):
        driver.start_iteration([1])
    driver.finish_run()


def test_a_resume_before_the_validation_keeps_the_training_metrics():
    """The training pass of the epoch was over: the host validates, and the logged metrics are kept."""
    losses = []
    first = HostDriver([], Host("mine"))
    first.start_run(epochs=1)
    first.start_epoch()
    first.start_pass("train", total=1)
    first.start_iteration([1])
    first.finish_step()
    first.finish_iteration(loss=2.0)
    first.finish_pass()
    state = first.state()
    first.finish_run()

    again = HostDriver([LambdaCallback(on_epoch_end=lambda run: losses.append(dict(run.metrics)))], Host("mine"))
    again.start_run(epochs=1, state=state)
    again.start_epoch()
    again.start_pass("val")
    again.start_iteration([1])
    again.finish_iteration()
    again.finish_pass({"loss": 3.0})
    again.finish_epoch()
    assert (again.run.epoch, again.run.iteration, again.run.step) == (1, 1, 1)
    again.finish_run()
    assert losses == [{"loss": 2.0, "val_loss": 3.0}]


def test_a_validation_within_an_epoch_is_seen_as_in_a_runner():
    ours, theirs = Record(), Record()
    in_a_runner([ours], validate_every=Every(steps=3) | Every(epochs=1))
    Trainer([theirs], validate_at=(3, 6)).fit(3)
    # A Runner validates at on_iter_end, before callbacks of the list; a host validates after it.
    assert [one for one in theirs.seen if one[0] != "on_iter_end"] == [one for one in ours.seen if one[0] != "on_iter_end"]
    assert sum(one[0] == "on_val_epoch_end" for one in ours.seen) == 9


@pytest.mark.parametrize("place", [(1, 2), (1, 0), (2, 0)])
def test_a_resume_within_or_between_epochs_is_seen_as_in_a_runner(tmp_path, place):
    """A resumed host has the record of a Runner that was stopped and resumed at the same place."""
    epoch, batch = place
    after = epoch * len(TRAIN) + batch
    stopping = [stop_at("on_train_iter_end" if batch else "on_epoch_end", lambda run: run.iteration == after)]
    in_a_runner([cb.ModelSaver(), *stopping], workdir=tmp_path)
    ours = Record()
    in_a_runner([cb.ModelSaver(), ours], workdir=tmp_path)

    found = Trainer([Record()])
    found.fit(3, keep_at=place)
    theirs = Record()
    Trainer([theirs]).fit(3, found=found.kept)
    assert theirs.seen == ours.seen


def test_a_resume_after_the_last_pass_continues_at_on_epoch_end():
    whole, first = Record(), Trainer([Record()])
    Trainer([whole]).fit(3)
    first.fit(3, keep_at=(1, None))
    rest = Record()
    Trainer([rest]).fit(3, found=first.kept)
    end = next(number for number, one in enumerate(whole.seen) if one[0] == "on_epoch_end" and one[1] == 2)
    ended = next(number for number, one in enumerate(rest.seen) if one[0] == "on_epoch_end")
    assert rest.seen[ended:] == whole.seen[end:]
    assert [one[0] for one in rest.seen[:ended]] == ["on_setup", "on_run_begin", "on_load", "on_epoch_begin"]


def test_the_state_of_callbacks_is_restored():
    def fitted(found=None, keep_at=None):
        record = Record()
        trainer = Trainer([record, cb.EarlyStopping("val_loss", patience=2, min_delta=10.0)])
        trainer.fit(9, found=found, keep_at=keep_at)
        return record.seen[-1][1], trainer.kept

    last, kept = fitted(keep_at=(2, 0))
    assert last == 3
    assert fitted(found=kept)[0] == last


def test_shown_values_are_not_averaged():
    seen = []
    driver = HostDriver([LambdaCallback(on_train_epoch_end=lambda run: seen.append(dict(run.metrics)))], Host("mine"))
    driver.start_run(epochs=1)
    driver.start_epoch()
    driver.start_pass("train")
    for loss in (1.0, 3.0):
        driver.start_iteration([0])
        driver.show({"running": loss * 10})
        assert driver.run.metrics["running"] == loss * 10
        driver.finish_iteration(loss=loss, log={"acc": loss})
    driver.finish_pass({"loss": 99.0, "host": 5.0})
    driver.finish_epoch()
    driver.finish_run()
    assert seen[0] == {"running": 30.0, "loss": 2.0, "acc": 2.0, "host": 5.0}


def test_signals_are_left_to_the_host():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    driver = HostDriver([], Host("mine"))
    driver.start_run()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    driver.finish_run()


def test_a_point_that_the_host_does_not_have_raises():
    class Fetching(Callback):
        def on_batch_fetch_end(self, run): ...

    cannot = {"on_batch_fetch_end": "it does not tell when it fetches"}
    with pytest.raises(NotUnderHost, match="Fetching: Trainer has no on_batch_fetch_end: it does not tell when it fetches"):
        HostDriver([Fetching()], Host("Trainer", cannot))


def test_rejecting_a_point_raises_if_a_callback_handles_it():
    driver = HostDriver([on("on_step_end")(lambda run: None)], Host("Trainer"))
    driver.start_run()
    driver.reject(["on_step_begin"], "its step is compiled")
    with pytest.raises(NotUnderHost, match="Trainer has no on_step_end: its step is compiled"):
        driver.reject(["on_step_begin", "on_step_end"], "its step is compiled")
    driver.finish_run()


def test_a_host_without_a_state_can_set_the_clocks():
    seen = []
    driver = HostDriver([on("on_epoch_begin")(lambda run: seen.append((run.epoch, run.step)))], Host("mine"))
    driver.start_run(clocks={"epoch": 4, "epochs_done": 4, "step": 100})
    assert not driver.resumes_in_epoch
    driver.start_epoch()
    driver.finish_run()
    assert seen == [(5, 100)]


def test_savers_and_skippers_raise_under_a_host_without_support():
    with pytest.raises(NotUnderHost, match="ModelSaver saves checkpoints, which Trainer does not support: it writes its own"):
        HostDriver([cb.ModelSaver()], Host("Trainer"))

    class Skips(Callback):
        may_skip = True

        def on_iter_begin(self, run): ...

    with pytest.raises(NotUnderHost, match="Skips skips batches, which Trainer does not support: no way"):
        HostDriver([Skips()], Host("Trainer", {"skip_batch": "no way"}))


@pytest.mark.parametrize("verdict", ["retry", "stop_epoch", "skip_step", "save"])
def test_a_verdict_that_the_host_does_not_support_raises(verdict):
    cannot = {"stop_epoch": "its epochs are whole", "skip_step": "it steps by itself", "save": "it saves by itself"}
    driver = HostDriver([], Host("Trainer", cannot))
    driver.start_run()
    driver.start_epoch()
    driver.start_pass("train")
    driver.start_iteration([1])
    with pytest.raises(NotUnderHost, match=rf"run\.{verdict}\(\) does not work under Trainer: it"):
        getattr(driver.run, verdict)()
    driver.finish_run()


def test_saves_are_written_by_the_host():
    written = []
    saver = cb.ModelSaver().when(Every(steps=2))
    driver = HostDriver([saver], Host("Trainer"), save=lambda tags, step: written.append((list(tags), step)) or "there")
    driver.start_run(epochs=1)
    driver.start_epoch()
    driver.start_pass("train")
    for _ in range(3):
        driver.start_iteration([1])
        driver.finish_step()
        driver.finish_iteration(loss=1.0)
    driver.finish_pass()
    driver.finish_epoch()
    driver.finish_run()
    assert [step for _, step in written] == [2, 3]


def test_calls_in_the_wrong_order_raise():
    driver = HostDriver([], Host("Trainer"))
    with pytest.raises(OutsideRun, match="Trainer has not started a run"):
        driver.start_epoch()
    driver.start_run()
    with pytest.raises(OutsideRun, match="Trainer has already started a run"):
        driver.start_run()
    with pytest.raises(BadLoop, match="Trainer: no pass is open"):
        driver.start_iteration([1])
    with pytest.raises(BadLoop, match="Trainer: no pass is open"):
        driver.finish_iteration()
    driver.start_epoch()
    with pytest.raises(BadLoop, match="Trainer: epoch 1 is still open"):
        driver.start_epoch()
    driver.start_pass("train")
    with pytest.raises(BadLoop, match="Trainer: no iteration is open"):
        driver.finish_iteration()
    driver.finish_run()
    assert not driver.is_running


def test_iterations_run_specialized_code_even_after_a_nested_pass():
    rows = []
    driver = HostDriver([on("on_iter_end")(lambda run: rows.append((run.mode, run.iteration, run.step)))], Host("mine"))
    driver.start_run()
    driver.start_epoch()
    driver.start_pass("train")
    driver.start_iteration([1])
    driver.start_step()
    driver.finish_step()
    driver.finish_iteration()
    driver.start_pass("val")
    driver.start_iteration([1])
    driver.finish_iteration()
    driver.finish_pass()
    driver.start_iteration([1])
    driver.finish_iteration()
    text = driver.hooks.explain(step=True)
    driver.finish_run()
    assert rows == [("train", 1, 1), ("val", 1, 1), ("train", 2, 1)]
    assert "The end of an iteration in a train pass" in text
    assert "count_step" not in text.partition("The end of an iteration in a train pass")[2]  # the host reports its steps


def test_a_missing_optional_point_does_not_raise():
    class Careful(Callback):
        optional_points = ("on_iter_skip",)

        def on_iter_skip(self): ...

        def on_epoch_end(self): ...

    class Fetching(Careful):
        def on_batch_fetch_end(self): ...

    cannot = {"on_iter_skip": "it computes every batch", "on_batch_fetch_end": "it fetches itself"}
    HostDriver([Careful()], Host("Trainer", cannot)).reject(["on_iter_skip"], "it computes every batch")
    with pytest.raises(NotUnderHost, match="Fetching: Trainer has no on_batch_fetch_end"):
        HostDriver([Fetching()], Host("Trainer", cannot))


def test_data_handlers_that_are_never_called_warn():
    class InData(Callback):
        def on_sample(self, sample): ...

        def on_epoch_end(self): ...

    def trained(callback, loader):
        driver = HostDriver([callback], Host("Trainer"))
        driver.start_run()
        driver.start_epoch()
        try:
            driver.start_pass("train", loader=loader)
        finally:
            driver.finish_run()

    with pytest.warns(HookpointWarning, match="InData.on_sample is never called: pass InData to a HookedLoader too"):
        trained(InData(), [1])
    callback = InData()
    loader = HookedLoader([1, 2, 3], callbacks=[callback])
    trained(callback, loader)  # no warning, which would be an error
    trained(callback, None)  # the adapter does not know the loader, but a loader exists
