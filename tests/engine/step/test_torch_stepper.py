from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from hookpoint import Callback, Every, HookpointWarning, LambdaCallback, MainCallback, StopRun, on
from hookpoint.core.errors import BadLoop, MissingMetric, TooManyRetries, UnknownMetric
from hookpoint.engine.runner import Runner

mse = nn.functional.mse_loss


class Stream(IterableDataset):
    """A stream of unknown length, in a DataLoader."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


def bare(net, batches, *, epochs=1, accumulate=1, clip=None, dtype=None, left_out=()):
    """Train with a bare loop, without the skipped batches, and return the weights."""
    model, optimizer = net()
    for _ in range(epochs):
        for number, (inputs, targets) in enumerate(batches, 1):
            if number - 1 in left_out:
                continue
            if (number - 1) % accumulate == 0:
                optimizer.zero_grad()
            with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
                loss = mse(model(inputs), targets)
            (loss / accumulate).backward()
            if number % accumulate == 0 or number == len(batches):
                if clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
    return model.weight.detach()


def ask(point, verdict, at=(0,)):
    """Return a callback that requests a verdict once at this point of each of these batches."""
    waiting = list(at)

    def handler(run):
        if run.batch_idx in waiting:
            waiting.remove(run.batch_idx)
            getattr(run, verdict)()

    return LambdaCallback(**{point: handler})


class Watch(Callback):
    """Record what happens in a training iteration, and what was skipped."""

    def __init__(self):
        self.seen, self.skipped = [], []

    def run(self, hookpoint=None, logs=None):
        if hookpoint.startswith(("on_backward", "on_step", "on_iter_skip", "on_train_iter")):
            self.seen.append(hookpoint.removeprefix("on_"))
        if hookpoint in ("on_train_iter_end", "on_iter_skip"):
            self.skipped.append(set(logs["run"].skipped))


BACKWARD = ["backward_begin", "backward_end"]
STEP = ["step_begin", "step_end"]


# Order of the points


def test_the_points_of_a_step_fire_in_order(runner, batches):
    watch = Watch()
    run = runner(watch).fit(batches[:2], epochs=1)
    assert watch.seen == ["train_iter_begin", *BACKWARD, *STEP, "train_iter_end"] * 2
    assert (run.step, run.iteration, run.samples) == (2, 2, 8)


def test_gradients_are_available_until_the_next_backward(runner, batches):
    seen = []

    @on("on_iter_end")
    @on("on_train_iter_begin")
    def look(run):
        seen.append(run.model.weight.grad is not None)

    runner(look).fit(batches[:2], epochs=1)
    assert seen == [False, True, True, True]


def test_a_step_is_counted_after_the_optimizer_has_stepped(runner, batches):
    seen = []
    look = LambdaCallback(
        on_step_begin=lambda run: seen.append(run.step),
        on_step_end=lambda run: seen.append(run.step),
        on_train_iter_end=lambda run: seen.append(run.step),
    )
    runner(look).fit(batches[:2], epochs=1)
    assert seen == [0, 1, 1, 1, 2, 2]


# Accumulation and clipping


@pytest.mark.parametrize("accumulate", [2, 3, 5, 7])
@pytest.mark.parametrize("kind", ["sized", "generator", "stream"])
def test_full_windows_and_a_short_last_window_step_as_by_hand(net, runner, batches, accumulate, kind):
    class Again:
        """Unsized, with a new iterator in every epoch."""

        def __iter__(self):
            return iter(batches)

    loaders = {"sized": batches, "generator": Again(), "stream": DataLoader(Stream(batches), batch_size=None)}
    watch = Watch()
    one = runner(watch, accumulate=accumulate)
    run = one.fit(loaders[kind], epochs=2)
    assert torch.equal(one.model.weight, bare(net, batches, epochs=2, accumulate=accumulate))
    assert run.step == watch.seen.count("step_end") == 2 * -(-5 // accumulate)
    assert run.iteration == watch.seen.count("backward_end") == 10


class TooShort:
    """A loader with more batches than its length, like an IterableDataset in workers, whose length is an estimate."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return 2


def test_batches_beyond_the_length_of_the_loader_fill_windows(net, runner, batches):
    one = runner(accumulate=2)
    run = one.fit(TooShort(batches), epochs=2)
    assert (run.step, run.iteration) == (6, 10)
    assert torch.equal(one.model.weight, bare(net, batches, epochs=2, accumulate=2))


def test_the_last_short_window_of_a_stream_steps_without_a_batch(runner, batches):
    seen = []

    class Look(Callback):
        def on_step_begin(self, run, batch, loss, outputs):
            seen.append((batch is None, loss is None, outputs is None))

    runner(Look(), accumulate=2).fit(iter(batches[:3]), epochs=1)
    assert seen == [(False, False, False), (True, True, True)]


def test_the_last_short_window_of_a_stream_can_be_dropped(net, runner, batches):
    one = runner(LambdaCallback(on_step_begin=lambda run: run.batch is None and run.skip_step()), accumulate=2)
    run = one.fit(iter(batches[:3]), epochs=1)
    assert run.step == 1
    assert torch.equal(one.model.weight, bare(net, batches[:2], accumulate=2))


def test_a_window_cut_short_steps_after_stop_epoch_but_not_after_stop(net, runner, batches):
    one = runner(ask("on_train_iter_end", "stop_epoch", at=[2]), accumulate=2)
    assert one.fit(batches, epochs=1).step == 2
    assert torch.equal(one.model.weight, bare(net, batches[:3], accumulate=2))
    one = runner(ask("on_train_iter_end", "stop", at=[2]), accumulate=2)
    assert one.fit(batches, epochs=1).step == 1
    assert torch.equal(one.model.weight, bare(net, batches[:2], accumulate=2))


def test_gradients_are_clipped_as_by_hand_before_on_step_begin(net, runner, batches):
    norms = []

    @on("on_step_begin")
    def look(run):
        norms.append(torch.stack([parameter.grad.norm() for parameter in run.model.parameters()]).norm().item())

    one = runner(look, clip_grad_norm=0.05)
    one.fit(batches, epochs=1)
    assert norms == pytest.approx([0.05] * 5, rel=1e-4)
    assert torch.equal(one.model.weight, bare(net, batches, clip=0.05))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "16"}, "precision must be '32', 'bf16' or 'fp16', got '16'."),
        ({"accumulate": 0}, "accumulate must be an integer >= 1, got 0."),
        ({"accumulate": 1.5}, "accumulate must be an integer >= 1, got 1.5."),
        ({"clip_grad_norm": 0}, "clip_grad_norm must be None or a number > 0, got 0."),
        ({"clip_grad_norm": float("nan")}, "clip_grad_norm must be None or a number > 0, got nan."),
        ({"lr_scheduler_on": "batch"}, "lr_scheduler_on must be 'epoch' or 'step', got 'batch'."),
    ],
)
def test_invalid_options_raise_at_once(runner, options, message):
    with pytest.raises(BadLoop) as caught:
        runner(**options)
    assert str(caught.value) == message


# Precision


def test_bf16_is_autocast_as_by_hand(net, runner, batches):
    seen = []
    one = runner(LambdaCallback(on_train_iter_end=lambda outputs: seen.append(outputs.dtype)), precision="bf16")
    one.fit(batches, epochs=1)
    assert seen == [torch.bfloat16] * 5
    assert torch.equal(one.model.weight, bare(net, batches, dtype=torch.bfloat16))
    assert one.predict(batches)[0].dtype == torch.bfloat16


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("clip", [None, 0.05])
def test_fp16_is_scaled_as_by_hand(net, runner, batches, accumulate, clip):
    model, optimizer = net()
    steps = []
    optimizer.register_step_post_hook(lambda *_: steps.append(True))  # the first steps overflow, until the scale is right
    scaler = torch.amp.GradScaler("cpu")
    for number, (inputs, targets) in enumerate(batches, 1):
        if (number - 1) % accumulate == 0:
            optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = mse(model(inputs), targets)
        scaler.scale(loss / accumulate).backward()
        if number % accumulate == 0 or number == len(batches):
            if clip is not None:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
    watch = Watch()
    one = runner(watch, precision="fp16", accumulate=accumulate, clip_grad_norm=clip)
    run = one.fit(batches, epochs=1)
    assert torch.equal(one.model.weight, model.weight)
    assert run.step == watch.seen.count("step_begin") == watch.seen.count("step_end") == len(steps) > 0


def test_a_step_that_overflows_in_fp16_is_not_counted(net, batches):
    class Overflow(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs) * (1e38 if inputs is batches[0][0] else 1.0)

    torch.manual_seed(0)
    model, optimizer = net(Overflow(3, 2))
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=10)
    watch = Watch()
    run = Runner(
        model, optimizer, mse, precision="fp16", lr_scheduler=scheduler, lr_scheduler_on="step", callbacks=[watch]
    ).fit(batches, epochs=1)
    assert 0 < run.step < 5
    assert watch.seen[:4] == ["train_iter_begin", *BACKWARD, "train_iter_end"]
    assert run.step == watch.seen.count("step_end") == scheduler.last_epoch
    assert torch.isfinite(model.weight).all()


@pytest.mark.parametrize("precision", ["32", "bf16"])
def test_a_custom_forward_runs_in_the_precision_of_the_run(net, batches, precision):
    class Main(MainCallback):
        def on_iter_forward(self, run):
            inputs, targets = run.batch
            run.outputs = run.model(inputs)
            run.loss = mse(run.outputs, targets)

        def on_pred_forward(self, run):
            run.outputs = run.model(run.batch[0])

    dtypes = []
    look = LambdaCallback(on_iter_end=lambda outputs: dtypes.append(outputs.dtype))
    model, optimizer = net()
    runner = Runner(model, optimizer, precision=precision, callbacks=[Main(), look])
    runner.fit(batches, batches, epochs=1)
    runner.predict(batches)
    expected = torch.bfloat16 if precision == "bf16" else torch.float32
    assert dtypes == [expected] * 15
    assert torch.equal(model.weight, bare(net, batches, dtype=torch.bfloat16 if precision == "bf16" else None))


# Verdicts


def test_a_skipped_batch_is_not_passed_to_the_model(net, runner, batches):
    watch = Watch()
    one = runner(ask("on_train_iter_begin", "skip_batch", at=[1]), watch)
    called = []
    one.model.register_forward_hook(lambda *_: called.append(True))
    run = one.fit(batches, epochs=1)
    assert len(called) == run.iteration == run.step == 4
    assert watch.seen[6:8] == ["train_iter_begin", "iter_skip"]
    assert watch.skipped == [set(), {"batch"}, set(), set(), set()]
    assert torch.equal(one.model.weight, bare(net, batches, left_out=[1]))


@pytest.mark.parametrize("point", ["on_train_iter_begin", "on_backward_begin"])
def test_skip_backward_skips_backward_and_step(net, runner, batches, point):
    watch = Watch()
    one = runner(ask(point, "skip_backward", at=[1]), watch)
    run = one.fit(batches, epochs=1)
    assert watch.seen[6:10] == ["train_iter_begin", *BACKWARD, "train_iter_end"]
    assert watch.skipped == [set(), {"backward"}, set(), set(), set()]
    assert (run.iteration, run.step) == (5, 4)
    assert torch.equal(one.model.weight, bare(net, batches, left_out=[1]))


@pytest.mark.parametrize("point", ["on_train_iter_begin", "on_backward_begin", "on_backward_end", "on_step_begin"])
def test_skip_step_drops_the_gradients(net, runner, batches, point):
    watch, gradients = Watch(), []
    look = LambdaCallback(on_train_iter_end=lambda run: gradients.append(run.model.weight.grad is not None))
    one = runner(ask(point, "skip_step", at=[1]), watch, look)
    run = one.fit(batches, epochs=1)
    assert watch.seen.count("step_end") == run.step == 4
    assert watch.skipped == [set(), {"step"}, set(), set(), set()]
    assert gradients == [True, False, True, True, True]
    assert torch.equal(one.model.weight, bare(net, batches, left_out=[1]))


def test_skip_step_drops_the_whole_window(net, runner, batches):
    one = runner(ask("on_backward_end", "skip_step", at=[1]), accumulate=2)
    assert one.fit(batches[:4], epochs=1).step == 1
    assert torch.equal(one.model.weight, bare(net, batches[2:4], accumulate=2))


def test_skip_step_drops_a_short_last_window(net, runner, batches):
    one = runner(ask("on_backward_end", "skip_step", at=[4]), accumulate=2)
    assert one.fit(batches, epochs=1).step == 2
    assert torch.equal(one.model.weight, bare(net, batches[:4], accumulate=2))


def test_skip_step_in_the_middle_of_a_window_changes_nothing(net, runner, batches):
    one = runner(ask("on_backward_end", "skip_step", at=[0]), accumulate=2)
    one.fit(batches[:4], epochs=1)
    assert torch.equal(one.model.weight, bare(net, batches[:4], accumulate=2))


@pytest.mark.parametrize("verdict", ["skip_backward", "skip_batch"])
def test_a_skipped_batch_does_not_count_for_the_window(net, runner, batches, verdict):
    one = runner(ask("on_backward_begin", verdict, at=[1]), accumulate=2)
    assert one.fit(batches, epochs=1).step == 2
    assert torch.equal(one.model.weight, bare(net, [batches[0], *batches[2:]], accumulate=2))


@pytest.mark.parametrize("point", ["on_train_iter_begin", "on_backward_begin", "on_backward_end", "on_step_begin"])
@pytest.mark.parametrize("verdict", ["retry", "skip_batch"])
def test_retry_and_skip_batch_undo_a_batch_before_its_step(net, runner, batches, point, verdict):
    watch = Watch()
    one = runner(ask(point, verdict, at=[1]), watch)
    run = one.fit(batches, epochs=1)
    left_out = [1] if verdict == "skip_batch" else []
    assert torch.equal(one.model.weight, bare(net, batches, left_out=left_out))
    assert run.step == run.iteration == 5 - len(left_out)
    assert watch.seen.count("iter_skip") == 1


@pytest.mark.parametrize("point", ["on_backward_end", "on_step_begin"])
@pytest.mark.parametrize("verdict", ["retry", "skip_batch"])
def test_retry_and_skip_batch_raise_after_gradients_were_accumulated(runner, batches, point, verdict):
    with pytest.raises(BadLoop) as caught:
        runner(ask(point, verdict, at=[1]), accumulate=2).fit(batches, epochs=1)
    assert str(caught.value) == (
        "a batch cannot be skipped or retried after its gradients were added to the gradients of other batches.\n"
        "  request   it before on_backward_end, or call run.skip_step() to drop the window"
    )


def test_retry_before_the_backward_keeps_the_window(net, runner, batches):
    one = runner(ask("on_backward_begin", "retry", at=[1, 2]), accumulate=2)
    one.fit(batches, epochs=1)
    assert torch.equal(one.model.weight, bare(net, batches, accumulate=2))


def test_retries_are_bounded(runner, batches):
    one = runner(LambdaCallback(on_backward_begin=lambda run: run.retry()), max_retries=2)
    calls = []
    one.model.register_forward_hook(lambda *_: calls.append(True))
    with pytest.raises(TooManyRetries, match="batch 0: retry 3 exceeds the limit of 2"):
        one.fit(batches, epochs=1)
    assert len(calls) == 3


@pytest.mark.parametrize(("verdict", "seen"), [("stop_epoch", [0, 1, 0, 1, 2, 3, 4]), ("stop", [0, 1])])
def test_stop_epoch_and_stop_take_effect_at_the_next_boundary(runner, batches, verdict, seen):
    indices, ends = [], []
    look = LambdaCallback(
        on_train_iter_end=lambda batch_idx: indices.append(batch_idx),
        on_epoch_end=lambda run: ends.append(run.epoch_complete),
    )
    run = runner(look, ask("on_backward_end", verdict, at=[1])).fit(batches, epochs=2)
    assert indices == seen
    assert run.step == len(seen)  # the step that requested it is finished
    assert ends == [False, True][: 2 if verdict == "stop_epoch" else 1]


def test_stop_run_raised_in_a_step_is_not_an_error(runner, batches):
    errors = []

    def stop():
        raise StopRun("enough")

    run = runner(
        LambdaCallback(on_backward_end=stop, on_iter_error=lambda error: errors.append(error)),
    ).fit(batches, epochs=2)
    assert (run.epoch, run.step, errors) == (1, 0, [])


def test_a_skip_ignored_by_a_custom_on_iter_backward_warns(runner, batches):
    class Careless(MainCallback):
        def on_iter_backward(self, run):
            run.optimizer.zero_grad()
            run.loss.backward()
            run.optimizer.step()

    class Careful(Careless):
        def on_iter_backward(self, run):
            if "step" not in run.skipped:
                super().on_iter_backward(run)

    asks = ask("on_train_iter_begin", "skip_step")
    with pytest.warns(HookpointWarning, match="skip_step had no effect: .* did not read run.skipped"):
        assert runner(Careless(), asks).fit(batches, epochs=1).step == 5
    assert runner(Careful(), ask("on_train_iter_begin", "skip_step")).fit(batches, epochs=1).step == 4


@pytest.mark.parametrize("point", ["on_backward_end", "on_step_begin"])
def test_skip_backward_after_the_backward_pass_warns(runner, batches, point):
    with pytest.warns(HookpointWarning, match="skip_backward had no effect: it was requested too late"):
        assert runner(ask(point, "skip_backward")).fit(batches, epochs=1).step == 5


@pytest.mark.parametrize("request_", ["skip_step", "skip_batch", "retry"])
def test_a_step_cannot_be_skipped_once_the_optimizer_has_stepped(runner, batches, request_):
    with pytest.raises(BadLoop, match="cannot be skipped at on_step_end: it is done"):
        runner(ask("on_step_end", request_)).fit(batches, epochs=1)


def test_a_skip_requested_before_an_error_does_not_suppress_it(runner, batches):
    def fail():
        raise ValueError("a bug in a callback")

    seen = []
    callbacks = [
        ask("on_backward_begin", "skip_batch"),
        LambdaCallback(on_backward_begin=fail),
        LambdaCallback(on_iter_error=lambda error: seen.append(str(error))),
    ]
    with pytest.raises(ValueError, match="a bug in a callback"):
        runner(*callbacks).fit(batches, epochs=1)
    assert seen == ["a bug in a callback"]


# A step that fails


class OutOfMemory(RuntimeError):
    pass


class Tight(nn.Linear):
    """Fail several times at the second batch, in forward or backward, as a device out of memory does."""

    def __init__(self, batches, fails, where):
        torch.manual_seed(0)
        super().__init__(3, 2)
        self.at, self.fails, self.where = batches[1][0], fails, where

    def forward(self, inputs):
        outputs = super().forward(inputs)
        if inputs is self.at and self.fails and self.training:
            self.fails -= 1
            if self.where == "forward":
                raise OutOfMemory("no room")
            outputs.register_hook(self.fail)
        return outputs

    def fail(self, gradient):
        raise OutOfMemory("no room")


class Handler(Callback):
    """Handle out of memory: free what can be freed, and retry."""

    def __init__(self, verdict="retry"):
        self.verdict, self.errors = verdict, []

    def on_iter_error(self, run, error, batch_idx):
        if isinstance(error, OutOfMemory):
            self.errors.append((str(error), batch_idx))
            getattr(run, self.verdict)()


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_an_error_in_the_step_can_be_handled_with_a_retry(net, batches, where):
    model, optimizer = net(Tight(batches, 2, where))
    handler = Handler()
    run = Runner(model, optimizer, mse, callbacks=[handler]).fit(batches, epochs=1)
    assert handler.errors == [("no room", 1)] * 2
    assert (run.step, run.iteration) == (5, 5)
    assert torch.equal(model.weight, bare(net, batches))


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_an_error_in_the_step_can_be_handled_with_a_skip(net, batches, where):
    model, optimizer = net(Tight(batches, 1, where))
    gradients = []
    look = LambdaCallback(on_iter_skip=lambda run: gradients.append(run.model.bias.grad))
    run = Runner(model, optimizer, mse, callbacks=[Handler("skip_batch"), look]).fit(batches, epochs=1)
    assert run.step == 4
    assert gradients == [None]  # the gradients of the failed step are dropped
    assert torch.equal(model.weight, bare(net, batches, left_out=[1]))


def test_retries_after_errors_are_bounded(net, batches):
    model, optimizer = net(Tight(batches, 100, "forward"))
    with pytest.raises(TooManyRetries, match="batch 1: retry 4 exceeds the limit of 3"):
        Runner(model, optimizer, mse, callbacks=[Handler()]).fit(batches, epochs=1)
    assert model.fails == 96


def test_an_error_before_the_backward_keeps_the_window(net, batches):
    model, optimizer = net(Tight(batches, 1, "forward"))
    Runner(model, optimizer, mse, accumulate=2, callbacks=[Handler()]).fit(batches, epochs=1)
    assert torch.equal(model.weight, bare(net, batches, accumulate=2))


def test_a_retry_cannot_suppress_an_error_in_the_backward_of_a_window(net, batches):
    model, optimizer = net(Tight(batches, 1, "backward"))
    with pytest.raises(OutOfMemory):
        Runner(model, optimizer, mse, accumulate=2, callbacks=[Handler()]).fit(batches, epochs=1)


@pytest.mark.parametrize("verdict", ["skip_step", "stop"])
def test_an_unhandled_error_propagates_and_names_the_batch(net, batches, verdict):
    model, optimizer = net(Tight(batches, 1, "forward"))
    with pytest.raises(OutOfMemory) as caught:
        Runner(model, optimizer, mse, callbacks=[Handler(verdict)]).fit(batches, epochs=1)
    assert caught.value.__notes__ == ["in the step of batch 1, (float32[4, 3], float32[4, 2]) (step 1, rank 0)"]


def test_a_handled_error_releases_its_memory(net, batches):
    """An error keeps its frames alive, and they hold the memory that ran out."""
    activations = []

    class Big(Tight):
        def forward(self, inputs):
            activation = inputs * 2
            activations.append(weakref.ref(activation))
            return super().forward(inputs) + 0 * activation.sum()

    alive = []
    look = LambdaCallback(on_train_iter_begin=lambda run: alive.append(sum(ref() is not None for ref in activations)))
    model, optimizer = net(Big(batches, 1, "forward"))
    gc.disable()  # a retry cannot use memory that only garbage collection would free
    try:
        Runner(model, optimizer, mse, callbacks=[Handler(), look]).fit(batches, epochs=1)
    finally:
        gc.enable()
    assert alive == [0] * 6


# A custom on_iter_backward


class ByHand(MainCallback):
    """Orca's default, written out."""

    def on_iter_backward(self, run):
        run.optimizer.zero_grad()
        run.loss.backward()
        run.optimizer.step()


class Halfway(MainCallback):
    def on_iter_backward(self, run):
        run.backward()
        run.optimizer.step()


class Through(MainCallback):
    def on_iter_backward(self, run):
        run.backward()
        run.optimizer_step()


OPTIONS = {
    "accumulate": {"accumulate": 2},
    "clip": {"clip_grad_norm": 0.05},
    "fp16": {"precision": "fp16"},
    "rate per step": {"lr_scheduler_on": "step"},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("main", [ByHand, Halfway])
def test_a_custom_step_that_would_ignore_options_raises(runner, batches, main, options):
    with pytest.raises(BadLoop) as caught:
        runner(main(), **options).fit(batches, epochs=1)
    assert str(caught.value) == (
        "on_iter_backward steps the optimizer: accumulate, clip_grad_norm, fp16 and lr_scheduler_on have no effect.\n"
        "  call      run.backward() and run.optimizer_step() in it"
    )


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_custom_step_through_the_runner_honours_its_options(runner, batches, options):
    own, default = runner(Through(), **options), runner(**options)
    runs = own.fit(batches, epochs=2), default.fit(batches, epochs=2)
    assert runs[0].step == runs[1].step
    assert torch.equal(own.model.weight, default.model.weight)


@pytest.mark.parametrize("main", [ByHand, Halfway, Through])
def test_any_custom_step_works_without_options(net, runner, batches, main):
    watch = Watch()
    one = runner(main(), watch)
    run = one.fit(batches, epochs=1)
    assert torch.equal(one.model.weight, bare(net, batches))
    assert run.step == watch.seen.count("step_begin") == watch.seen.count("step_end") == 5


@pytest.mark.parametrize(("main", "options"), [(Through(), {}), (MainCallback(), {"precision": "fp16"})])
def test_a_skip_inside_the_optimizer_step_raises(runner, batches, main, options):
    with pytest.raises(BadLoop) as caught:
        runner(main, ask("on_step_begin", "skip_step"), **options).fit(batches, epochs=1)
    assert str(caught.value) == (
        "the step cannot be skipped at on_step_begin with fp16 or a custom on_iter_backward: it has already begun.\n"
        "  request   it at on_backward_end"
    )


# Learning-rate schedulers


def scheduled(net, make, callbacks=(), **options):
    model, optimizer = net()
    scheduler = make(optimizer)
    return Runner(model, optimizer, mse, lr_scheduler=scheduler, callbacks=callbacks, **options), scheduler


def halving(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)


def test_a_scheduler_steps_after_each_epoch_and_its_rate_is_logged(net, batches):
    seen = []
    look = LambdaCallback(on_epoch_end=lambda logs: seen.append(logs["learning_rate"]))
    runner, _ = scheduled(net, halving, callbacks=[look])
    run = runner.fit(batches, epochs=3)
    assert seen == [0.1, 0.05, 0.025]  # the rates the epochs were trained with
    assert run.optimizer.param_groups[0]["lr"] == 0.0125


@pytest.mark.parametrize(("accumulate", "steps"), [(1, 5), (2, 3)])
def test_a_scheduler_steps_with_the_optimizer_on_request(net, batches, accumulate, steps):
    runner, scheduler = scheduled(net, halving, lr_scheduler_on="step", accumulate=accumulate)
    runner.fit(batches, epochs=1)
    assert scheduler.last_epoch == steps
    assert scheduler.get_last_lr() == [0.1 * 0.5**steps]


def test_the_scheduler_ignores_an_epoch_cut_short_by_stop(net, batches):
    runner, scheduler = scheduled(net, halving, callbacks=[ask("on_train_iter_end", "stop", at=[1])])
    runner.fit(batches, epochs=2)
    assert scheduler.last_epoch == 0


def test_the_scheduler_counts_an_epoch_ended_by_stop_epoch(net, batches):
    runner, scheduler = scheduled(net, halving, callbacks=[ask("on_train_iter_end", "stop_epoch", at=[1])])
    runner.fit(batches, epochs=2)
    assert scheduler.last_epoch == 2


class Plateau(torch.optim.lr_scheduler.ReduceLROnPlateau):
    """Record the arguments."""

    def __init__(self, optimizer):
        super().__init__(optimizer)
        self.given = []

    def step(self, metrics, epoch=None):
        self.given.append(metrics)
        super().step(metrics, epoch)


@pytest.mark.parametrize(
    ("val", "lr_metric", "name"),
    [(False, None, "loss"), (True, None, "val_loss"), (True, "loss", "loss"), (True, "val_far", "val_far")],
)
def test_a_plateau_scheduler_gets_its_metric(net, batches, val, lr_metric, name):
    runner, plateau = scheduled(net, Plateau, lr_metric=lr_metric, metrics={"far": lambda o, t: (o - t).abs().mean()})
    run = runner.fit(batches, batches if val else None, epochs=3)
    assert plateau.given == [value for _, value in run.monitors.get_history(name)]
    assert len(plateau.given) == 3


def test_a_plateau_scheduler_acts_only_on_a_new_value(net, batches):
    runner, plateau = scheduled(net, Plateau)
    run = runner.fit(batches, batches, epochs=5, validate_every=Every(epochs=2))
    assert plateau.given == [value for _, value in run.monitors.get_history("val_loss")]
    assert len(plateau.given) == 2


def test_a_metric_logged_at_on_epoch_end_is_read_in_the_next_epoch(net, batches):
    @on("on_epoch_end")
    def log(run):
        run.log(late=run.epoch)

    runner, plateau = scheduled(net, Plateau, lr_metric="late", callbacks=[log])
    runner.fit(batches, epochs=3)
    assert plateau.given == [1.0, 2.0]


def test_a_plateau_metric_that_nothing_logs_raises(net, batches):
    runner, _ = scheduled(net, Plateau, lr_metric="val_los")
    with pytest.raises(UnknownMetric) as caught:
        runner.fit(batches, batches, epochs=2)
    assert str(caught.value) == (
        "the plateau scheduler reads 'val_los', which nothing logs. Did you mean 'val_loss'?\n"
        "  known     learning_rate, loss, val_loss\n"
        "  log       it with run.log in a callback, or with hookpoint.log in the model"
    )


@pytest.mark.parametrize("schedule", [halving, None])
def test_lr_metric_without_a_plateau_scheduler_raises(net, batches, runner, schedule):
    one = scheduled(net, schedule, lr_metric="loss")[0] if schedule else runner(lr_metric="loss")
    with pytest.raises(BadLoop) as caught:
        one.fit(batches, epochs=1)
    assert str(caught.value) == "lr_metric='loss' needs a ReduceLROnPlateau scheduler.\n  drop      lr_metric"


def test_a_plateau_metric_missing_after_the_first_epoch_raises(net, batches):
    runner, _ = scheduled(net, Plateau, lr_metric="late", callbacks=[on("on_epoch_end")(lambda run: None)])
    with pytest.raises(MissingMetric, match=r"^the plateau scheduler reads 'late', which nothing has logged"):
        runner.fit(batches, batches, epochs=9)
    assert runner.fit(batches, batches, epochs=1).epoch == 1


def test_a_plateau_scheduler_can_step_with_the_optimizer(net, batches):
    losses = []
    look = LambdaCallback(on_train_iter_end=lambda loss: losses.append(loss.item()))
    runner, plateau = scheduled(net, Plateau, lr_scheduler_on="step", callbacks=[look])
    runner.fit(batches, batches, epochs=1)
    assert plateau.given == losses


def test_several_schedulers_step_together(net, batches):
    model, optimizer = net()
    schedulers = {"one": halving(optimizer), "two": Plateau(optimizer), "three": Plateau(optimizer)}
    Runner(model, optimizer, mse, lr_scheduler=schedulers).fit(batches, batches, epochs=2)
    assert schedulers["one"].last_epoch == 2
    assert len(schedulers["two"].given) == len(schedulers["three"].given) == 2


def test_a_custom_on_lr_adjust_replaces_the_scheduler_step(net, batches):
    class Main(MainCallback):
        def on_lr_adjust(self, run):
            seen.append(run.epoch)

    seen = []
    runner, scheduler = scheduled(net, halving, callbacks=[Main()])
    runner.fit(batches, epochs=2)
    assert (seen, scheduler.last_epoch) == ([1, 2], 0)


# The learning rate


def records(kind="scalars"):
    """Return a monitor that keeps its records."""

    class Keep(Callback):
        def __init__(self):
            self.kept = []

        def on_records(self, records):
            self.kept += [(record.at, record.step, record.scalars()) for record in records if record.kind == kind]

    return Keep()


def test_the_learning_rate_is_in_the_records_of_log_steps_and_epochs(runner, batches):
    keep = records()
    runner(keep, log_every=2).fit(batches, epochs=1)
    assert [(at, step, values.get("learning_rate")) for at, step, values in keep.kept] == [
        ("step", 2, 0.1),
        ("step", 4, 0.1),
        ("epoch", 5, None),
        ("value", 5, 0.1),
    ]


def test_a_tensor_learning_rate_is_logged_with_its_value_at_each_step(net, batches):
    model, _ = net()
    rate = torch.tensor(0.1, dtype=torch.float64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    keep = records()

    @on("on_train_iter_end")
    def change(run):
        run.hyper["lr"] = run.step / 10

    Runner(model, optimizer, mse, callbacks=[change, keep], log_every=1).fit(batches, epochs=1)
    assert optimizer.param_groups[0]["lr"] is rate
    rates = [values["learning_rate"] for at, _, values in keep.kept if at == "step"]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])


def test_an_optimizer_without_a_learning_rate_logs_none(net, batches):
    class Fixed(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {})

        def step(self, closure=None):
            pass

    model, _ = net()
    run = Runner(model, Fixed(model.parameters()), mse).fit(batches, epochs=1)
    assert "learning_rate" not in run.metrics
    assert run.step == 5


def test_an_optimizer_without_hooks_steps_with_each_batch(net, batches):
    class Plain:
        """The smallest possible optimizer."""

        def __init__(self, parameters):
            self.param_groups = [{"params": list(parameters)}]

        def step(self):
            for parameter in self.param_groups[0]["params"]:
                parameter.data.add_(parameter.grad, alpha=-0.1)

    model, _ = net()
    run = Runner(model, Plain(model.parameters()), mse).fit(batches, epochs=1)
    assert run.step == 5
    assert torch.equal(model.weight, bare(net, batches))


@pytest.mark.parametrize(
    ("convert", "got"),
    [
        (torch.Tensor.item, "a float"),
        (torch.Tensor.detach, "a tensor without one"),
        (lambda loss: loss.detach().numpy()[()], "a float32"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"accumulate": 2}])
def test_a_loss_without_a_gradient_raises_with_the_reason(runner, batches, convert, got, options):
    seen = []
    one = runner(
        LambdaCallback(on_iter_error=lambda error: seen.append(error)),
        criterion=lambda outputs, targets: convert(mse(outputs, targets)),
        **options,
    )
    with pytest.raises(BadLoop) as caught:
        one.fit(batches, epochs=1)
    assert str(caught.value) == (
        f"the loss must be a scalar tensor with a gradient, got {got}.\n"
        "  return    the tensor itself as the loss, without .item(), .detach() or float()\n"
        "  check     that the loss is computed from outputs of the model, and that the model is not frozen"
    )
    assert caught.value.__notes__ == ["in the step of batch 0, (float32[4, 3], float32[4, 2]) (step 0, rank 0)"]
    assert seen == [caught.value]
    assert one.validate(batches)["val_loss"] > 0


def test_a_float_as_the_fp16_loss_raises_with_the_reason(runner, batches):
    with pytest.raises(BadLoop, match="the loss must be a scalar tensor with a gradient, got a float"):
        runner(criterion=lambda outputs, targets: 1.0, precision="fp16").fit(batches, epochs=1)


def test_an_unrelated_error_of_a_step_keeps_its_type_if_the_loss_has_no_gradient(runner, batches):
    def fail(run):
        raise RuntimeError("unrelated")

    with pytest.raises(RuntimeError, match="unrelated"):
        runner(LambdaCallback(on_backward_begin=fail), criterion=lambda outputs, targets: 1.0).fit(batches, epochs=1)


def test_an_error_in_a_custom_backward_pass_keeps_its_type_if_the_logged_loss_is_detached(runner, batches):
    class Penalized(MainCallback):
        def on_train_forward(self, run):
            self.loss = run.model(run.batch[0]).mean()
            run.loss = self.loss.detach()

        def on_iter_backward(self, run):
            torch.autograd.grad(run.model(run.batch[0]).sum(), run.batch[0])

    with pytest.raises(RuntimeError, match="One of the differentiated Tensors does not require grad") as caught:
        runner(main=Penalized()).fit(batches, epochs=1)
    assert "in callback Penalized at on_iter_backward" in caught.value.__notes__[0]
