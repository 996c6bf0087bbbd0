from __future__ import annotations

import pytest

from hookpoint import After, Every, Loop, PeriodicCallback, Runner
from hookpoint.callbacks import ProcessTensors


def test_the_function_is_called_after_each_step():
    seen = []
    callback = ProcessTensors(["batch"], seen.append)
    with Loop([callback], extra_callbacks=[], monitors=[]) as run:
        for batch in run.batches([3, 4, 5]):
            assert seen == list(range(3, batch))
    assert seen == [3, 4, 5]
    assert run.step == 3


@pytest.mark.parametrize(
    ("when", "expected"),
    [(Every(steps=2), [2, 4, 6]), (Every(epochs=1), [3, 6]), (Every(steps=1) & After(steps=5), [5, 6])],
)
def test_a_schedule_decides_when_to_call(when, expected):
    seen = []
    with Loop([ProcessTensors({"step": lambda run: run.step}, seen.append).when(when)], extra_callbacks=[], monitors=[]) as run:
        for _ in run.epochs(2):
            for _ in run.batches(range(3)):
                pass
    assert seen == expected


def test_periodic_callback_makes_calls_less_frequent():
    seen = []
    inner = ProcessTensors({"step": lambda run: run.step}, seen.append)
    with Loop([PeriodicCallback(inner, every_k_steps=2)], extra_callbacks=[], monitors=[]) as run:
        for _ in run.batches(range(5)):
            pass
    assert seen == [2, 4]


def test_an_error_of_the_function_ends_the_run_and_the_callback_can_be_reused():
    def fn(batch):
        seen.append(batch)
        if len(seen) == 2:
            raise ZeroDivisionError("mine")

    def train():
        with Loop([callback], extra_callbacks=[], monitors=[]) as run:
            for _ in run.batches(range(3)):
                pass

    seen = []
    callback = ProcessTensors("batch", fn)
    with pytest.raises(ZeroDivisionError) as caught:
        train()
    assert caught.value.__notes__ == ["in callback ProcessTensors(batch) at on_iter_end (step 2, rank 0)"]
    train()
    assert seen == [0, 1, 0, 1, 2]


def test_skipped_fp16_steps_do_not_count():
    torch = pytest.importorskip("torch")
    seen = []
    model = torch.nn.Linear(1, 1)
    torch.nn.init.ones_(model.weight)
    torch.nn.init.zeros_(model.bias)  # a small loss, so that all but one of its scaled gradients are finite
    inputs = [(torch.full((2, 1), value), torch.full((2, 1), value + 0.01)) for value in (1.0, float("inf"), 2.0)]
    runner = Runner(
        model,
        torch.optim.SGD(model.parameters(), lr=0.01),
        torch.nn.MSELoss(),
        callbacks=[ProcessTensors(["batch/0", "weight.grad"], lambda x, gradient: seen.append((x[0].item(), gradient)))],
        precision="fp16",
        extra_callbacks=[],
        monitors=[],
    )
    run = runner.fit(inputs, epochs=1)
    assert [x for x, _ in seen] == [1.0, 2.0]
    assert run.step == 2
    assert all(gradient.abs().max() < 100 for _, gradient in seen)  # of the unscaled loss


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (3, "fn must be a function, got 3"),
        (lambda one: None, "fn must take 2 values: "),
        (lambda *, a: None, "2 values"),
    ],
)
def test_a_function_with_the_wrong_parameters_raises(fn, message):
    with pytest.raises(TypeError, match=message):
        ProcessTensors(["loss", "batch"], fn)
