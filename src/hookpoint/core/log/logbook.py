"""Logbook: average logged values over passes, and send the means at log steps and at the end of epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hookpoint.core.log._name_limit import NameLimit, check_name
from hookpoint.core.log.floats import Floats, MayWait, as_scalar, floats_one_by_one
from hookpoint.core.log.mean import Mean
from hookpoint.core.log.metrics import Logs, Metrics
from hookpoint.core.log.reader_windows import ReaderWindow, ReaderWindows

if TYPE_CHECKING:
    from hookpoint.core.log.loss_check import LossCheck
    from hookpoint.core.log.monitors import Monitors
    from hookpoint.core.schedule.clocks import Clocks

Shared = Callable[[Sequence[Mapping[str, Mean]], str], list[dict[str, Mean]]]
PREFIX = {"train": "", "val": "val_", "pred": "pred_"}
KNOWN_PREFIXES = {"val": ("val_", "val-", "val/", "validation"), "pred": ("pred_", "pred-", "pred/")}
OF_VALIDATION = (*KNOWN_PREFIXES["val"], *KNOWN_PREFIXES["pred"])


def logged_name(name: str, mode: str) -> str:
    """Return the metric name for a value that is logged in a validation or prediction pass."""
    return name if name.startswith(KNOWN_PREFIXES[mode]) else PREFIX[mode] + name


def renamed(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Rename validation results for another dataset: `val_loss` becomes `test_loss`.

    >>> renamed({"val_loss": 1, "val/acc": 2}, "test"), renamed({"val_loss": 1}, "test/")
    ({'test_loss': 1, 'test/acc': 2}, {'test/loss': 1})
    """
    joint = "" if prefix.endswith(("_", "-", "/")) else None
    result = {}
    for name, value in values.items():
        mark = next((mark for mark in ("val_", "val-", "val/") if name.startswith(mark)), "")
        result[prefix + (joint if joint is not None else mark[-1:] or "_") + name.removeprefix(mark)] = value
    return result


@dataclass(slots=True, eq=False)
class Page:
    """The values of one pass, by name: means since the last log step, means over the pass, and the last values from `put`.

    `is_side` marks a pass whose values do not become metrics. `is_shared` marks a pass whose means are computed over all ranks.
    `recent` maps each name, as the caller wrote it, to a list. New values are appended to this list.
    """

    mode: str
    is_side: bool = False
    is_shared: bool = False
    is_final: bool = False
    window: dict[str, Mean] = field(default_factory=dict)
    means: dict[str, Any] = field(default_factory=dict)
    put: dict[str, Mean] = field(default_factory=dict)
    recent: dict[str, list[tuple[Any, float]]] = field(default_factory=dict)


class Logbook:
    """Store values on the training thread, without waiting for a device.

    `recent` belongs to the innermost pass. A caller may append a value to one of the lists in `recent`, as `log` does. The
    values are converted and averaged at the log step. If a name has no list, call `log` instead.
    """

    def __init__(
        self,
        clocks: Clocks,
        *,
        log_every: int,
        floats: Floats = floats_one_by_one,
        read_by_steps: Iterable[str] = (),
        may_wait: MayWait = nullcontext,
    ) -> None:
        self.metrics = Metrics()
        self.windows = ReaderWindows(read_by_steps, floats, may_wait)
        self.monitors: Monitors | None = None
        self.is_muted = False  # True while a run resumes: values are ignored, because they were logged before the checkpoint.
        self.has_ended = False  # whether the run has ended: monitors then receive no more values
        self.has_recent = True  # False if a run uses a CUDA graph: `recent` then stays empty, so `log` can copy each value.
        self.recent: dict[str, list[tuple[Any, float]]] = {}
        self.next_log_step = log_every or 0
        self._clocks, self._log_every, self._floats = clocks, log_every, floats
        self._pages: list[Page] = []
        self._between: dict[str, Any] = {}
        self._limit = NameLimit()
        self._names = self._limit.names  # not a copy; a lookup in this set is faster than a call to `admits`.
        self.shared: Shared | None = None  # computes means over all ranks; None outside a team
        self.loss_check: LossCheck | None = None
        self.has_validated = False  # whether one of the run's own validation passes has finished
        self.at_log_step: list[Callable[[Mapping[str, Any]], Mapping[str, Any]]] = []

    @property
    def log_every(self) -> int:
        return self._log_every

    def set_log_every(self, steps: int, *, moves_next: bool) -> None:
        """Set the number of steps between log steps. With `moves_next`, also reschedule the next log step."""
        self._log_every = steps
        if moves_next:
            self.next_log_step = self._clocks.step + steps - self._clocks.step % steps

    def open_page(self, mode: str, *, is_side: bool = False, is_shared: bool = False) -> None:
        """Start collecting the values of a new pass."""
        self.flush()  # send these values with the current clocks, not with the clocks of the next log step
        self._pages.append(Page(mode, is_side, is_shared))
        self.recent = self._pages[-1].recent

    def log(self, name: str, value: Any, weight: float, *, as_given: bool = False) -> None:
        """Add a value. Inside a pass, it counts towards the pass's mean. Between passes, it is a single value."""
        value = as_scalar(name, value)
        if name in self.recent and not as_given:
            self.recent[name].append((value, weight))  # the fast path: not the first value of this name since the last log step
        elif not self.is_muted:
            self._log_first(name, value, weight, as_given)

    def add(self, name: str, value: Any, weight: float) -> None:
        """Do the same as `log`. This method is simple enough to be inlined into the generated code of a step."""
        if name in self.recent:
            self.recent[name].append((as_scalar(name, value), weight))
        else:
            self.log(name, value, weight)

    def _log_first(self, called: str, value: Any, weight: float, as_given: bool) -> None:
        check_name(called)
        page = self._pages[-1] if self._pages else None
        name = logged_name(called, page.mode) if page is not None and page.mode != "train" and not as_given else called
        if name not in self._names and not self._limit.admits(name):
            return
        if page is None:
            self.metrics.observe(name, value, self._clocks.moment)
            self._between[name] = value
        elif page.is_final:
            page.means[name] = value
            page.put.pop(name, None)
            self._observe(page, name, value)
        else:
            if name not in page.window:
                page.window[name] = Mean(self._floats)
            self._follow(page, name, called, page.window[name], as_given)
            page.window[name].pending.append((value, weight))

    def _follow(self, page: Page, name: str, called: str, mean: Mean, as_given: bool) -> None:
        """Let callers append values directly to `mean.pending`. Metrics and readers also get their values from this list."""
        if not page.is_side:
            self.metrics.follow(name, mean, self._clocks.epoch)
            if page.mode == "train" and name in self.windows.by_metric:
                self.windows.by_metric[name].follow(mean.pending)
        if self.has_recent and not as_given:
            page.recent[called] = mean.pending
        self.recent = page.recent

    def _release(self) -> None:
        """Stop callers from appending to the lists in `recent`, and deliver all values to readers.

        The next value of each name goes through `log`.
        """
        if self.windows.by_metric:
            self.windows.release()
        for page in self._pages:
            page.recent.clear()

    def pause_recent(self) -> None:
        """Make the next value go through `log`, because the run is no longer inside the pass that `recent` belongs to."""
        self.recent = {}

    def logs(self) -> Logs:
        """Return the metrics that were logged in the current epoch. At the end of a training pass, omit validation metrics."""
        ends_training = bool(self._pages) and self._pages[-1].is_final and self._pages[-1].mode == "train"
        return Logs(self.metrics, self._clocks.epoch, without=OF_VALIDATION if ends_training else ())

    def put(self, values: Mapping[str, Any], weight: float) -> None:
        """Send values immediately, with the current clocks, instead of averaging them.

        A side pass sends nothing: its values only count towards its means. In other passes, each rank has its own value until
        the pass ends. The mean of the ranks' last values then becomes the value on all ranks.
        """
        scalars = {name: as_scalar(name, value) for name, value in values.items()}
        page = self._pages[-1] if self._pages else None
        if self.is_muted:
            return
        if not self._names.issuperset(scalars):
            scalars = self._admitted(scalars)
        if page is None or page.is_final or page.is_side:
            if page is None and not scalars.keys().isdisjoint(self._between):  # a value that is put twice is sent twice
                self.flush()
            for name, value in scalars.items():
                self.log(name, value, weight, as_given=True)
            return
        self._send({name: self._put(page, name, value, weight) for name, value in scalars.items()}, "value")

    def _put(self, page: Page, name: str, value: Any, weight: float) -> Any:
        self._release()
        readers = self.windows.by_metric.get(name) if page.mode == "train" else None
        if readers is not None:
            readers.put(value, weight)
        mean = page.put[name] = Mean(self._floats)
        mean.add(value, 1.0)
        mean.close()  # queues the copy of a device tensor
        value = mean if mean.is_pending else value
        if self.shared is not None and page.is_shared:
            self.metrics.show(name, value, self._clocks.epoch)
        else:
            self._observe(page, name, value)
            if readers is not None:
                self.windows.ignore([name])
        return value

    def read(self, reader: ReaderWindow) -> float | None:
        """Return the mean of the values that have become visible to this reader since its last read, or None."""
        if self._log_every and self._clocks.step >= self.next_log_step:
            self.windows.land()  # at a log step, the previous window becomes visible
        return self.windows.read(reader)

    def log_final(self, values: Mapping[str, Any], mode: str) -> None:
        """Add the results of a finished pass as single values, even in the middle of another pass."""
        scalars = {name: as_scalar(name, value) for name, value in values.items()}
        if not self.is_muted:
            self._release()
            scalars = self._admitted(scalars)
            for name, value in scalars.items():
                self.metrics.observe(name, value, self._clocks.moment)
            self._send(scalars, "epoch", mode)

    def end_window(self, *, send: bool) -> None:
        """Start new means for the current pass. With `send`, this is a log step, so also send the finished means."""
        self._release()
        page = self._pages[-1]
        window, page.window = page.window, {}
        for name, mean in window.items():
            self.metrics.settle(name)
            mean.close()
            if name not in page.means:
                page.means[name] = Mean(self._floats)
            page.means[name].add_mean(mean)
        if send:
            self.next_log_step = self._clocks.step + self._log_every - self._clocks.step % self._log_every
            late = self.windows.close() if self.windows.by_metric else {}
            if self.shared is not None and page.is_shared:
                window, late = self.shared([window, late], "the means at a log step")
                window = _settled(window)
            if self.windows.by_metric:
                self.windows.launch(late)
            values: dict[str, Any] = dict(window)
            for function in self.at_log_step:
                values.update(function(window))
            self._send(values, "step", page.mode)
            if self.loss_check is not None and page.is_shared == (self.shared is not None):  # means are equal on all ranks
                self.loss_check.at_log_step(window.get("loss"))

    def show(self, name: str, value: Any) -> None:
        """Set a metric's latest value without adding the value to a mean.

        Used for values from another library's trainer, which may already be means.
        """
        value = as_scalar(name, value)
        if not self.is_muted and (name in self._names or self._limit.admits(name)):
            self._release()
            self.metrics.show(name, value, self._clocks.epoch)

    def finish_page(self, finals: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Turn the means of a finished pass into its results, and make them the latest values of the metrics.

        Values that callbacks log at the end of the pass also become results.

        `finals` contains values that another library's trainer computed over the whole pass. If values were also logged under
        the same name during the pass, their mean is used instead.
        """
        self.end_window(send=False)
        page = self._pages[-1]
        page.is_final = True
        for name, value in (finals or {}).items():
            name = name if page.mode == "train" else logged_name(name, page.mode)
            if name not in page.means and not self.is_muted and self._limit.admits(name):
                page.means[name] = Mean(self._floats)
                page.means[name].add(as_scalar(name, value), 1.0)
        is_read = page.mode == "train" and not page.is_side
        late, observed = self.windows.close() if is_read else {}, page.means
        if self.shared is not None and page.is_shared:
            page.means, late, page.put = self.shared([page.means, late, page.put], f"the means of a {page.mode} pass")
            page.means = _settled(page.means)
            observed = {**_settled(page.put), **page.means}
        for name, mean in observed.items():
            self._observe(page, name, mean)
        if is_read:
            self.windows.launch(late)
            self.windows.land()
            self.windows.ignore(observed)
        page.put = {name: value for name, value in page.put.items() if name not in page.means}
        page.means.update(page.put)
        return page.means

    def close_page(self) -> None:
        """Send the results of a finished pass. Values logged with `put` have already been sent."""
        page = self._pop_page()
        if not page.is_side:
            self.has_validated |= page.mode == "val"
            self._send({name: value for name, value in page.means.items() if name not in page.put}, "epoch", page.mode)

    def drop_page(self) -> None:
        """Discard the values of a pass that an exception ended."""
        if self._pop_page().mode == "train":
            self.windows.drop()

    def drop_pages(self) -> None:
        """Discard the values of all passes that an exception ended."""
        while self._pages:
            self._pop_page()

    def _pop_page(self) -> Page:
        self._release()
        page = self._pages.pop()
        for name in page.window:
            self.metrics.settle(name)
        self.recent = self._pages[-1].recent if self._pages else {}
        return page

    def flush(self) -> None:
        """Send the values logged between passes."""
        between, self._between = self._between, {}
        self._send(between, "value")

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save in a checkpoint. During a training pass, the state includes the means of that pass."""
        self._release()
        page = self._pages[0] if self._pages and self._pages[0].mode == "train" else Page("train")
        means = page.means
        return {
            "metrics": self.metrics.state_dict(),
            "next_log_step": self.next_log_step,
            "between": {name: float(value) for name, value in self._between.items()},
            "window": {name: mean.state() for name, mean in page.window.items()},
            "whole": {name: mean.state() for name, mean in means.items() if isinstance(mean, Mean) and name not in page.put},
            "put": {name: mean.state() for name, mean in page.put.items()},
            **self.windows.state_dict(),
            "loss_check": None if self.loss_check is None else self.loss_check.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any], *, in_pass: bool) -> None:
        """Restore the state. If the run resumes within a training pass, also restore the means of that pass."""
        self.metrics.load_state_dict(state["metrics"])
        self._limit.restore(self.metrics)
        self.next_log_step = state["next_log_step"] if self._log_every else 0
        self._between = dict(state["between"])
        self.windows.load_state_dict(state)
        if self.loss_check is not None and state.get("loss_check") is not None:
            self.loss_check.load_state_dict(state["loss_check"])
        if in_pass:
            page = self._pages[0]
            page.window = {name: Mean(self._floats).restore(sums) for name, sums in state["window"].items()}
            page.means = {name: Mean(self._floats).restore(sums) for name, sums in state["whole"].items()}
            page.put = {name: Mean(self._floats).restore(sums) for name, sums in state.get("put", {}).items()}

    def _admitted(self, values: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if self._limit.admits(name)}

    def _observe(self, page: Page, name: str, value: Any) -> None:
        if not page.is_side:
            self.metrics.observe(name, value, self._clocks.moment)

    def _send(self, values: dict[str, Any], at: str, mode: str | None = None) -> None:
        if values and self.monitors is not None:
            self.monitors.put("scalars", values, at=at, mode=mode)


def _settled(means: Mapping[str, Mean]) -> dict[str, Any]:
    """Return global means as floats. If all values of a mean are NaN or infinite, return the Mean itself.

    The loss check reads the attribute `is_all_bad` of this Mean.
    """
    return {name: mean if mean.is_all_bad else float(mean) for name, mean in means.items()}
