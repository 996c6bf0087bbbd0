"""FlopsTracker: log the model's FLOPs per step, and the fraction of the device's peak that training reaches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from hookpoint.callbacks._shared.arguments import positive
from hookpoint.callbacks.progress._batch_signature import Counted, Flops, elements_of, signature_of
from hookpoint.callbacks.progress._lap_timer import LapTimer, wait_for
from hookpoint.callbacks.progress._peak_flops import device_name, peak_flops
from hookpoint.core.callback.callback import Options
from hookpoint.core.checkpoint.stateful import named_parameters
from hookpoint.core.errors import BadLoop
from hookpoint.core.logger import logger
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.run import Run

if TYPE_CHECKING:
    from hookpoint.callbacks.progress._flop_count import FlopCount

MAX_SIGNATURES = 64  # counting slows a step down, so a run must not count every batch if all of them differ


class FlopsTracker(LapTimer):
    """Log the model's FLOPs per step and the utilization of the device (MFU and HFU), at each log step.

        peak_flops: The device's peak in FLOP/s. By default, it is taken from a table of common GPUs, for dense bfloat16 or
            float16 operations. Pass the peak for the precision that you train in, or for a device that is not in the table.

    torch's counter runs in each iteration whose batch has a new signature. The signature consists of the shapes and dtypes of
    the tensors. Later iterations with the same signature reuse the counted FLOPs. If you change which parameters require
    gradients, the FLOPs are counted again. After 64 signatures, no further batches are counted. The FLOPs of a batch with a new
    signature are then estimated from the counted batch with the closest number of elements.

    Logs for this rank:

    - `model_flops`: forward and backward FLOPs per optimizer step. A multiply-add counts as two FLOPs.
    - `model_flops_per_second`: model FLOPs per second of training time. Training time excludes validation and checkpoints.
    - `mfu`: `model_flops_per_second` as a fraction of the peak.
    - `hfu`: the same as `mfu`, but including the operations that activation checkpointing repeats.

    Shapes may change from batch to batch, so each iteration compares its batch's shapes with those of the previous batch. The
    metrics are computed only at log steps. Counting slows an iteration down, so counted iterations are not timed. In a counted
    iteration, a compiled or captured step runs eagerly. torch counts matrix multiplications, convolutions and attention. To
    count other operators, register them with `torch.utils.flop_counter.register_flop_formula`. The optimizer's operations are
    not counted. The second backward pass of a gradient penalty (`create_graph=True`) counts towards `hfu` only.

    >>> FlopsTracker(peak_flops=197e12).peak_flops
    197000000000000.0
    """

    optional_points = ("on_backward_begin", "on_iter_skip", "on_iter_error")
    may_write = ("model_flops", "model_flops_per_second", "mfu", "hfu")
    keeps: ClassVar[str] = f"{LapTimer.keeps}, and its FLOPs"
    step_cost: ClassVar[str] = (
        "about one microsecond to compare the shapes of this batch and the previous one; a counted iteration waits for the GPU"
    )

    def __init__(self, peak_flops: float | None = None, **options: Unpack[Options]) -> None:
        super().__init__("since", **options)
        self.peak_flops = None if peak_flops is None else float(positive("FlopsTracker", "peak_flops", peak_flops))
        self._reset()

    def _reset(self) -> None:
        self._peak = self.peak_flops
        self._known: dict[Any, Counted] = {}  # the counted batches, by signature
        self._signature: Any = None  # the signature of the last batch
        self._trained: tuple[bool, ...] = ()  # for each parameter, whether it requires gradients
        self._count: FlopCount | None = None  # None unless FLOPs are being counted
        self._next: Counted | Flops | None = None  # the FLOPs of this iteration, or None while they are being counted
        self._elements = 0  # the number of elements in the batch that is being counted
        # The sums since the last log step, without the batches in `Counted.times`. `_timed` also omits counted iterations.
        self._all = self._timed = Flops()
        self._has_warned = False

    def on_setup(self, run: Run) -> None:
        owner = self.name or "FlopsTracker"
        try:
            import torch  # noqa: F401
        except ImportError as error:
            raise BadLoop(f"{owner} needs PyTorch.", install="pip install 'hookpoint[torch]'") from error
        if not machine_of(run).options.log_every:
            raise BadLoop(f"{owner} logs at log steps, but log_every=0 disables them.", give="log_every=50")

    def on_run_begin(self, run: Run) -> None:
        self._reset()
        super().on_run_begin(run)
        if self._peak is None:
            first = next(iter(named_parameters(run.model)), None)
            device = device_name(run.device if run.device is not None or first is None else first[1].device)
            self._peak = peak_flops(device)
            if self._peak is None:
                owner = self.name or "FlopsTracker"
                logger.info("%s logs neither mfu nor hfu: the peak of %r is unknown. Pass peak_flops=...", owner, device)
        run.at_log_step(self._at_log_step)

    def on_train_epoch_begin(self, run: Run) -> None:
        super().on_train_epoch_begin(run)
        trained = tuple(bool(getattr(parameter, "requires_grad", True)) for _, parameter in named_parameters(run.model))
        if trained != self._trained:
            self._add_up()
            self._known, self._trained, self._signature = {}, trained, None

    def on_train_iter_begin(self, run: Run, batch: Any) -> None:
        signature = signature_of(batch)
        if signature != self._signature or self._next is None:
            self._change(run, batch, signature)

    def _change(self, run: Run, batch: Any, signature: Any) -> None:
        """Look up the FLOPs of a batch by its signature. If they are unknown, start to count them, or estimate them."""
        self._stop(run)
        self._signature = signature
        self._next = self._known.get(signature)
        if self._next is None and len(self._known) < MAX_SIGNATURES:
            self._elements = elements_of(batch)
            self._start(run)
        elif self._next is None:
            elements = elements_of(batch)
            nearest = min(self._known.values(), key=lambda counted: abs(counted.elements - elements))
            self._next = Flops().plus(nearest.flops, elements / max(nearest.elements, 1))

    def leaves_graph(self, run: Run) -> bool:
        """Return whether the next step must run outside the CUDA graph so that its operations can be counted."""
        return self._count is not None

    def on_backward_begin(self) -> None:
        """Do nothing. This handler exists because `leaves_graph` applies only to callbacks with a handler inside the step."""

    def on_step_begin(self) -> None:
        if self._count is not None:
            self._count.stop()

    def on_step_end(self) -> None:
        if self._count is not None:
            self._count.start()

    def on_train_iter_end(self, run: Run) -> None:
        added = self._next
        if type(added) is Counted:  # the most frequent case; isinstance would take longer
            added.times += 1
        elif added is not None:
            assert isinstance(added, Flops)
            self._all, self._timed = self._all.plus(added), self._timed.plus(added)
        elif self._count is not None:
            self._keep_count(run, self._count)

    def _keep_count(self, run: Run, count: FlopCount) -> None:
        self._stop(run)
        if "backward" in run.skipped:
            return
        flops = count.flops
        self._next = self._known[self._signature] = Counted(self._elements, flops)
        self._all = self._all.plus(flops)
        if not flops.model and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s: torch counts no FLOPs in step %d; it counts only matrix multiplication, convolution and attention. "
                "Register others with torch.utils.flop_counter.register_flop_formula",
                self.name or "FlopsTracker",
                run.step,
            )

    def on_iter_skip(self, run: Run) -> None:
        self._stop(run)

    on_iter_error = on_iter_skip

    def on_val_epoch_begin(self, run: Run) -> None:
        if self._count is not None:  # a callback runs another pass inside this iteration: discard the count
            self._stop(run)
        super().on_val_epoch_begin(run)

    on_pred_epoch_begin = on_val_epoch_begin

    def on_run_end(self) -> None:
        if self._count is not None:
            self._count.stop()
            self._count = None
        super().on_run_end()

    def _start(self, run: Run) -> None:
        """Start counting, and stop timing."""
        from hookpoint.callbacks.progress._flop_count import FlopCount

        wait_for(run.device)
        self.time.pause()
        self._count = FlopCount()
        self._count.start()

    def _stop(self, run: Run) -> None:
        """Stop counting, if counting has started, and start timing again."""
        if self._count is not None:
            self._count.stop()
            self._count = None
            wait_for(run.device)
            self.time.resume()

    def _add_up(self) -> None:
        """Add the FLOPs of the iterations that `Counted.times` counts to the sums, and reset `Counted.times`."""
        for counted in self._known.values():
            if counted.times:
                self._all = self._all.plus(counted.flops, counted.times)
                self._timed = self._timed.plus(counted.flops, counted.times)
                counted.times = 0

    def _at_log_step(self, means: Mapping[str, Any]) -> dict[str, float]:
        self._add_up()
        lap, model, (timed, hardware) = self.elapsed("since"), self._all.model, self._timed
        if not lap.steps:
            return {}
        self.start("since")
        self._all = self._timed = Flops()
        values = {"model_flops": model / lap.steps} if model else {}
        if timed and lap.seconds > 0 and not self.time.is_unknown:
            values["model_flops_per_second"] = timed / lap.seconds
            if self._peak is not None:
                values |= {"mfu": timed / lap.seconds / self._peak, "hfu": hardware / lap.seconds / self._peak}
        return values

    def state_dict(self) -> dict[str, Any]:
        self._add_up()
        return {**super().state_dict(), "flops": {"all": list(self._all), "timed": list(self._timed)}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._add_up()
        self._all, self._timed = Flops(*state["flops"]["all"]), Flops(*state["flops"]["timed"])
