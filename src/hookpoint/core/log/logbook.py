"""Logbook: what is logged, averaged over passes, and sent on at log steps and at the end of epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from hookpoint.core.log._reader_windows import Windows
from hookpoint.core.log.metrics import Floats, Logs, Mean, Metrics, floats_one_by_one, held
from hookpoint.core.log.name_limit import NameLimit
from hookpoint.core.log.reader_window import ReaderWindow

if TYPE_CHECKING:
    from hookpoint.core.log.loss_check import LossCheck
    from hookpoint.core.log.monitors import Monitors
    from hookpoint.core.schedule.clocks import Clocks

Shared = Callable[[Sequence[Mapping[str, Mean]], str], list[dict[str, Mean]]]
PREFIX = {"train": "", "val": "val_", "pred": "pred_"}
ALREADY_SAID = {"val": ("val_", "val-", "val/", "validation"), "pred": ("pred_", "pred-", "pred/")}
OF_VALIDATION = (*ALREADY_SAID["val"], *ALREADY_SAID["pred"])


def logged_name(name: str, mode: str) -> str:
    """Return the name under which a value that is logged in a validation or prediction pass is known."""
    return name if name.startswith(ALREADY_SAID[mode]) else PREFIX[mode] + name


def renamed(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return what was logged in a validation pass under the names of another one: `val_loss` as `test_loss`.

    >>> renamed({"val_loss": 1, "val/acc": 2}, "test"), renamed({"val_loss": 1}, "test/")
    ({'test_loss': 1, 'test/acc': 2}, {'test/loss': 1})
    """
    joint = "" if prefix.endswith(("_", "-", "/")) else None
    found = {}
    for name, value in values.items():
        mark = next((one for one in ALREADY_SAID["val"] if one != "validation" and name.startswith(one)), "")
        found[prefix + (joint if joint is not None else mark[-1:] or "_") + name.removeprefix(mark)] = value
    return found


class Page:
    """What one pass has logged: a mean per name since the last log step, one of the whole pass, and what was put last."""

    __slots__ = ("aside", "is_final", "is_shared", "mode", "put", "whole", "window")

    def __init__(self, mode: str, aside: bool, is_shared: bool = False) -> None:
        self.is_shared = is_shared
        self.mode = mode
        self.aside = aside
        self.is_final = False
        self.window: dict[str, Mean] = {}
        self.whole: dict[str, Any] = {}
        self.put: dict[str, Mean] = {}


class Logbook:
    """Take in values on the training thread, without waiting for any of them."""

    def __init__(
        self,
        clocks: Clocks,
        *,
        log_every: int,
        floats: Floats = floats_one_by_one,
        read_by_steps: Iterable[str] = (),
        may_wait: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.metrics = Metrics()
        self.windows = Windows(read_by_steps, floats, may_wait)
        self.monitors: Monitors | None = None
        self.is_muted = False  # on the way back to where a checkpoint was made: that was logged before it
        self.next_log_step = log_every or 0
        self._clocks = clocks
        self._log_every = log_every
        self._floats = floats
        self._pages: list[Page] = []
        self._between: dict[str, Any] = {}
        self._limit = NameLimit()
        self._names = self._limit.names  # a known name costs a look into this set, and no call
        self.shared: Shared | None = None  # in a team: how the means of all processes become one
        self.loss_check: LossCheck | None = None
        self.has_validated = False  # a validation pass of the run itself is over
        self.at_log_step: list[Callable[[Mapping[str, Any]], Mapping[str, Any]]] = []

    def open_page(self, mode: str, *, aside: bool = False, is_shared: bool = False) -> None:
        """Begin a page for a pass; one that `is_shared` is made by all processes of a team, which have its means in common."""
        self.flush()  # with the clocks of now, not those of the next log step
        self._pages.append(Page(mode, aside, is_shared))

    def log(self, name: str, value: Any, weight: float, *, as_given: bool = False) -> None:
        """Take in a value: inside a pass it counts for the pass's mean, between passes it stands for itself."""
        value = held(name, value)
        if self.is_muted:
            return
        page = self._pages[-1] if self._pages else None
        if page is not None and page.mode == "train" and not page.aside and name in page.window:
            page.window[name].add(value, weight)  # the way of all values but the first since a log step
            self.metrics.refresh(name, value)
            return
        if page is not None and page.mode != "train" and not as_given:
            name = logged_name(name, page.mode)
        if page is None:
            if name in self._names or self._limit.admits(name):
                self.metrics.observe(name, value, self._clocks.moment)
                self._between[name] = value
            return
        if page.is_final:
            if name in self._names or self._limit.admits(name):
                page.whole[name] = value
                page.put.pop(name, None)
                self._observe(page, name, value)
            return
        mean = page.window.get(name)
        if mean is None:
            if name not in self._names and not self._limit.admits(name):
                return
            mean = page.window[name] = self._new_mean(page, name)
        mean.add(value, weight)
        if not page.aside:
            self.metrics.show(name, value, self._clocks.epoch)

    def logs(self) -> Logs:
        """Return the metrics with a value of the running epoch; where a training pass ends, those of training alone."""
        ends_training = bool(self._pages) and self._pages[-1].is_final and self._pages[-1].mode == "train"
        return Logs(self.metrics, self._clocks.epoch, without=OF_VALIDATION if ends_training else ())

    def put(self, values: Mapping[str, Any], weight: float) -> None:
        """Take in values that stand for themselves, also inside a pass: they are sent at once, with the clocks of now.

        A pass aside sends nothing: what is put there counts for its means. Of several processes each has its own value; when
        their pass ends, the mean of the last ones is the value that counts for all of them.
        """
        kept = {name: held(name, value) for name, value in values.items()}
        page = self._pages[-1] if self._pages else None
        if self.is_muted:
            return
        if not self._names.issuperset(kept):
            kept = self._admitted(kept)
        if page is None or page.is_final or page.aside:
            if page is None and not kept.keys().isdisjoint(self._between):  # what is put twice is sent twice
                self.flush()
            for name, value in kept.items():
                self.log(name, value, weight, as_given=True)
            return
        self._send({name: self._put(page, name, value, weight) for name, value in kept.items()}, "value")

    def _put(self, page: Page, name: str, value: Any, weight: float) -> Any:
        way = self.windows.ways.get(name) if page.mode == "train" else None
        if way is not None:
            way.put(value, weight)
        mean = page.put[name] = Mean(self._floats)
        mean.add(value, 1.0)
        mean.close()  # the copy of a device tensor is queued now, and nobody waits for it
        value = mean if mean.is_pending else value
        if self.shared is not None and page.is_shared:
            self.metrics.show(name, value, self._clocks.epoch)
        else:
            self._observe(page, name, value)
            if way is not None:
                self.windows.ignore([name])
        return value

    def read(self, reader: ReaderWindow) -> float | None:
        """Return the mean of what was logged since a reader last looked, as far as it is visible; None where nothing was."""
        if self._log_every and self._clocks.step >= self.next_log_step:
            self.windows.land()  # this is a log step, which has not ended its window yet
        return self.windows.read(reader)

    def log_final(self, values: Mapping[str, Any], mode: str) -> None:
        """Take in the results of a pass that is over: each stands for itself, also in the middle of another pass."""
        kept = {name: held(name, value) for name, value in values.items()}
        if not self.is_muted:
            kept = self._admitted(kept)
            for name, value in kept.items():
                self.metrics.observe(name, value, self._clocks.moment)
            self._send(kept, "epoch", mode)

    def end_window(self, *, send: bool) -> None:
        """Start new means on the current page; at a log step the finished ones are sent."""
        page = self._pages[-1]
        window, page.window = page.window, {}
        for name, mean in window.items():
            mean.close()
            if name not in page.whole:
                page.whole[name] = Mean(self._floats)
            page.whole[name].add_mean(mean)
        if send:
            self.next_log_step = self._clocks.step + self._log_every - self._clocks.step % self._log_every
            late = self.windows.close()
            if self.shared is not None and page.is_shared:
                window, late = self.shared([window, late], "the means of a log step")
                window = _settled(window)
            self.windows.launch(late)
            extra = [added for function in self.at_log_step for added in function(window).items()]
            self._send({**window, **dict(extra)}, "step", page.mode)
            if self.loss_check is not None and page.is_shared == (self.shared is not None):  # the same on all processes
                self.loss_check.at_log_step(window.get("loss"))

    def show(self, name: str, value: Any) -> None:
        """Make a value the latest one without counting it for any mean: a host's may be a mean already."""
        value = held(name, value)
        if not self.is_muted and (name in self._names or self._limit.admits(name)):
            self.metrics.show(name, value, self._clocks.epoch)

    def finish_page(self, finals: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Make the means of a finished pass its results, and the latest values; what is logged from now on is final too.

        `finals` are values of the whole pass that a host has computed; a name that was logged in the pass keeps its mean.
        """
        self.end_window(send=False)
        page = self._pages[-1]
        page.is_final = True
        for name, value in (finals or {}).items():
            name = name if page.mode == "train" else logged_name(name, page.mode)
            if name not in page.whole and not self.is_muted and self._limit.admits(name):
                page.whole[name] = Mean(self._floats)
                page.whole[name].add(held(name, value), 1.0)
        is_read = page.mode == "train" and not page.aside
        late, observed = self.windows.close() if is_read else {}, page.whole
        if self.shared is not None and page.is_shared:
            page.whole, late, page.put = self.shared([page.whole, late, page.put], f"the means of a {page.mode} pass")
            page.whole = _settled(page.whole)
            observed = {**_settled(page.put), **page.whole}
        for name, mean in observed.items():
            self._observe(page, name, mean)
        if is_read:
            self.windows.launch(late)
            self.windows.land()
            self.windows.ignore(observed)
        page.put = {name: value for name, value in page.put.items() if name not in page.whole}
        page.whole.update(page.put)
        return page.whole

    def close_page(self) -> None:
        """Send the results of a finished pass; what was put was sent then."""
        page = self._pages.pop()
        if not page.aside:
            self.has_validated |= page.mode == "val"
            self._send({name: value for name, value in page.whole.items() if name not in page.put}, "epoch", page.mode)

    def drop_page(self) -> None:
        """Forget the pass that an exception cut off."""
        if self._pages.pop().mode == "train":
            self.windows.drop()

    def drop_pages(self) -> None:
        """Forget passes that an exception cut off."""
        self._pages.clear()

    def flush(self) -> None:
        """Send what was logged between passes."""
        between, self._between = self._between, {}
        self._send(between, "value")

    def state_dict(self) -> dict[str, Any]:
        """Return the metrics, and the means of the training pass that is open, if one is."""
        page = self._pages[0] if self._pages and self._pages[0].mode == "train" else Page("train", aside=False)
        return {
            "metrics": self.metrics.state_dict(),
            "next_log_step": self.next_log_step,
            "between": {name: float(value) for name, value in self._between.items()},
            "window": {name: mean.state() for name, mean in page.window.items()},
            "whole": {
                name: mean.state() for name, mean in page.whole.items() if isinstance(mean, Mean) and name not in page.put
            },
            "put": {name: mean.state() for name, mean in page.put.items()},
            **self.windows.state_dict(),
            "loss_check": None if self.loss_check is None else self.loss_check.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any], *, in_pass: bool) -> None:
        """Take back what was kept; with a training pass open again, its means too."""
        self.metrics.load_state_dict(state["metrics"])
        self._limit.take_back(self.metrics)
        self.next_log_step = state["next_log_step"] if self._log_every else 0
        self._between = dict(state["between"])
        self.windows.load_state_dict(state)
        if self.loss_check is not None and state.get("loss_check") is not None:
            self.loss_check.load_state_dict(state["loss_check"])
        if in_pass:
            page = self._pages[0]
            page.window = {name: self._new_mean(page, name).restore(sums) for name, sums in state["window"].items()}
            page.whole = {name: Mean(self._floats).restore(sums) for name, sums in state["whole"].items()}
            page.put = {name: Mean(self._floats).restore(sums) for name, sums in state.get("put", {}).items()}

    def _new_mean(self, page: Page, name: str) -> Mean:
        way = self.windows.ways.get(name) if page.mode == "train" and not page.aside else None
        return Mean(self._floats) if way is None else way.mean()

    def _admitted(self, values: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if self._limit.admits(name)}

    def _observe(self, page: Page, name: str, value: Any) -> None:
        if not page.aside:
            self.metrics.observe(name, value, self._clocks.moment)

    def _send(self, values: dict[str, Any], at: str, mode: str | None = None) -> None:
        if values and self.monitors is not None:
            self.monitors.put("scalars", values, at=at, mode=mode)


def _settled(means: Mapping[str, Mean]) -> dict[str, Any]:
    """Return global means as floats; one whose values are all NaN or infinite stays a mean, which knows that."""
    return {name: mean if mean.is_all_bad else float(mean) for name, mean in means.items()}
