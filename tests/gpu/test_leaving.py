"""Some steps run outside the graph, with correct gradients before and after."""

from __future__ import annotations

import logging
from typing import Any

import torch
from tests.gpu.training import BATCH, Net, assert_equal, assert_same, data, full_training, optimizer_of
from torch import nn

from hookpoint import Callback, Every, Runner, on
from hookpoint.callbacks import GradientStats, ModuleHooks

STEPS_PER_EPOCH = 26


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def __enter__(self) -> list[str]:
        logging.getLogger("hookpoint").addHandler(self)
        return self.lines

    def __exit__(self, *args: Any) -> None:
        logging.getLogger("hookpoint").removeHandler(self)


def plain(**options: Any) -> Any:
    return full_training(scheduler=False, extras=False, epochs=2, **options)


def outside(result: Any) -> int:
    return len(result.losses) - result.replays


def test_no_default_callback_leaves_the_graph() -> None:
    from hookpoint.presets._defaults import with_defaults

    result = plain(cuda_graph=True)
    assert outside(result) == 3 + 2, result  # three real steps, and the smaller last batch of each epoch
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        print("    tensorboard is missing: TFEventWriter is left out")
    assert with_defaults([], None, []) != []
    result = plain(cuda_graph=True, extra_callbacks=None, monitors=[])
    assert outside(result) == 3 + 2, result


def test_a_callback_due_every_tenth_step_leaves_the_graph_for_these_steps() -> None:
    result = plain(cuda_graph=True, callbacks=(GradientStats(every=10),))
    assert outside(result) == 3 + 2 + 5, result  # steps 10, 20, 30, 40 and 50; 26 and 52 are the last batches

    seen = []

    class Scheduled(Callback):
        @on("on_step_begin", when=Every(steps=10))
        def look(self, run: Any) -> None:
            seen.append(run.step)

    eager = plain(callbacks=(Scheduled(),))
    expected, seen[:] = list(seen), []
    graph = plain(cuda_graph=True, callbacks=(Scheduled(),))
    assert seen == expected
    assert outside(graph) <= 3 + 2 + len(seen)
    assert_same(eager, graph)


def test_a_callback_that_prevents_graphs_is_named_once() -> None:
    class Always(Callback):
        def on_backward_end(self, run: Any) -> None:
            pass

    with Lines() as lines:
        result = plain(cuda_graph=True, callbacks=(Always(name="Mine"),))
    assert result.replays == result.captures == 0
    assert lines.count("Mine listens to on_backward_end, so every step runs outside the CUDA graph") == 1, lines


def test_hooks_leave_the_graph_while_they_exist() -> None:
    calls: list[str] = []

    class Between(Callback):
        def on_train_iter_begin(self, run: Any) -> None:
            if run.iteration == 10:
                self.handle = run.model.head.register_forward_hook(lambda *args: calls.append("forward"))
            if run.iteration == 15:
                self.handle.remove()

    with Lines() as lines:
        result = plain(cuda_graph=True, callbacks=(Between(),))
    assert calls == ["forward"] * 5
    assert outside(result) == 3 + 2 + 5
    assert "module 'head' has hooks: steps run outside the CUDA graph until they are removed" in lines
    assert_same(plain(), result)
    hooked = plain(cuda_graph=True, callbacks=(ModuleHooks("head", forward=lambda *args: None),))
    assert hooked.replays == 0


def test_a_skip_requested_before_the_step_is_honoured() -> None:
    class Skips(Callback):
        def on_train_iter_begin(self, run: Any) -> None:
            if run.iteration in (12, 20):
                run.skip_step()
            if run.iteration == 14:
                run.skip_backward()

    eager, graph = plain(callbacks=(Skips(),)), plain(cuda_graph=True, callbacks=(Skips(),))
    assert_same(eager, graph)
    assert outside(graph) == 3 + 2 + 3


def test_gradients_return_to_the_captured_buffers_after_a_step_outside() -> None:
    addresses: dict[int, set[int]] = {}
    sums: dict[bool, list[torch.Tensor]] = {False: [], True: []}

    class Looks(Callback):
        def on_step_end(self, run: Any) -> None:
            if run.step > 5 and run.step != STEPS_PER_EPOCH:
                addresses.setdefault(run.step % 10 == 0, set()).add(run.model.head.weight.grad.data_ptr())
            sums[is_graph].append(run.model.head.weight.grad.sum())

    for is_graph in (False, True):
        addresses.clear()
        plain(cuda_graph=is_graph, callbacks=(Looks(), GradientStats(every=10)))
    assert len(addresses[False]) <= 2, addresses
    assert_equal(sums[True], sums[False])


def test_explain_lists_the_steps_outside_the_graph() -> None:
    torch.manual_seed(0)
    model = Net().cuda()
    tables = []

    class Explains(Callback):
        def on_run_begin(self, run: Any) -> None:
            tables.append(run.hooks.explain())

    runner = Runner(
        model,
        optimizer_of("sgd", model.parameters()),
        nn.CrossEntropyLoss(),
        callbacks=[Explains(), GradientStats(every=10)],
        extra_callbacks=[],
        monitors=[],
        cuda_graph=True,
    )
    runner.fit(data()[0], epochs=1)
    shown = "steps outside the CUDA graph\n  GradientStats(*) at on_step_begin: steps for which leaves_graph(run) is True"
    assert shown in tables[0], tables[0]


def test_at_most_four_batch_signatures_are_captured() -> None:
    batches = [pair for pair in data()[0] if len(pair[0]) == BATCH]
    varied = [(x[:n], y[:n]) for n in (16, 15, 14, 13, 12) for x, y in batches[:6]]
    torch.manual_seed(0)

    def train(*, cuda_graph: bool) -> Any:
        torch.manual_seed(3)
        model = Net().cuda()
        optimizer = optimizer_of("adamw", model.parameters())
        runner = Runner(model, optimizer, nn.CrossEntropyLoss(), extra_callbacks=[], monitors=[], cuda_graph=cuda_graph, seed=1)
        runner.fit(varied, epochs=2)
        return dict(model.state_dict())

    from tests.gpu.training import counted

    eager = train(cuda_graph=False)
    with Lines() as lines, counted() as counts:
        graph = train(cuda_graph=True)
    assert_equal(eager, graph)
    assert counts == {"captures": 4, "replays": 4 * (3 + 6)}, counts
    assert (
        "batches have more than 4 different shapes or non-tensor values: the other batches run outside the CUDA graphs" in lines
    )
