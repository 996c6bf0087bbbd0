"""A typed program that uses hookpoint. mypy --strict checks this file, and test_typing.py runs it.

Each `type: ignore` marks a mistake that mypy must detect: mypy reports every unneeded `type: ignore`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, assert_type

import torch

from hookpoint import (
    After,
    At,
    Callback,
    CallbackPipeline,
    Every,
    Hooks,
    LambdaCallback,
    Loop,
    MainCallback,
    ObjAttrParam,
    PeriodicTrigger,
    Point,
    Record,
    Replace,
    Run,
    Runner,
    When,
    current_run,
    declare,
    guard,
    guarding,
    install,
    on,
    points,
    run_each,
)

# A guard keeps the signature.


@guard("on_tokenize")
def tokenize(text: str, *, limit: int = 10, callbacks: object = None) -> list[str]:
    return text.split()[:limit]


@guard
def count(words: list[str], callbacks: object = None) -> int:
    return len(words)


@guard("on_fetch")
async def fetch(url: str, *, callbacks: object = None) -> bytes:
    return url.encode()


@guard("on_read")
def read(lines: int, *, callbacks: object = None) -> Iterator[str]:
    for number in range(lines):
        yield f"line {number}"


@guard("on_stream")
async def stream(lines: int, *, callbacks: object = None) -> AsyncIterator[int]:
    for number in range(lines):
        yield number


class Tokenizer:
    @guard("on_encode")
    def encode(self, text: str, *, callbacks: object = None) -> list[int]:
        return [len(word) for word in text.split()]


def use_guards() -> None:
    assert_type(tokenize("a b c", limit=2), list[str])
    assert_type(count(["a"]), int)
    assert_type(asyncio.run(fetch("x")), bytes)
    assert_type(read(2), Iterator[str])
    assert_type(stream(2), AsyncIterator[int])
    assert_type(Tokenizer().encode("a bc"), list[int])


def misuse_guards() -> None:
    """Never called: mistakes that a type checker rejects."""
    tokenize()  # type: ignore[call-arg]
    tokenize("a", limt=2)  # type: ignore[call-arg]
    tokenize(3)  # type: ignore[arg-type]
    count("a b")  # type: ignore[arg-type]
    Tokenizer().encode()  # type: ignore[call-arg]
    guard(3)  # type: ignore[call-overload]
    Every(steps="often")  # type: ignore[arg-type]
    LambdaCallback(on_error="explode")  # type: ignore[arg-type]


# Callbacks may override points with any of their arguments and still pass a strict checker.


class RunOnly(Callback):
    def __init__(self) -> None:
        super().__init__(name="run-only", on_error="warn", ranks="chief")
        self.epochs: list[int] = []

    def on_epoch_end(self, run: Run) -> None:
        self.epochs.append(run.epoch)

    def on_iter_begin(self, run: Run) -> None:
        if run.batch_idx > 100:
            run.skip_batch()


class ByName(Callback):
    writes = ("doubled",)

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.words: list[str] = []

    def on_train_iter_end(self, loss: float, batch: float, batch_idx: int) -> None:
        self.losses.append(loss)

    def on_epoch_end(self, epoch: int, logs: dict[str, float], run: Run) -> None:
        run.log("doubled", 2 * logs["loss"])

    def on_tokenize_end(self, result: list[str], limit: int) -> Replace | None:
        self.words += result
        return Replace([word.upper() for word in result]) if limit > 1 else None

    def on_exception(self, error: BaseException) -> None:
        print(error)


class Main(MainCallback):
    def on_iter_forward(self, run: Run) -> None:
        run.outputs = run.loss = run.batch * 2.0


class Monitor(Callback):
    def __init__(self) -> None:
        self.kinds: set[str] = set()

    def on_records(self, records: list[Record]) -> None:
        self.kinds |= {record.kind for record in records}


class Triggered(Callback):
    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_trigger(self, run: Run) -> None:
        self.steps.append(run.step)


# A plain function keeps its type.


@on("on_epoch_end")
def say(run: Run) -> None:
    assert run.epoch > 0


@on("on_train_iter_end", when=Every(steps=2))
def rarely(run: Run, loss: float) -> None:
    run.store["last"] = loss


def use_functions() -> None:
    function: Callable[[Run], None] = say
    assert function is say


# Your own loop.


def use_loop() -> None:
    by_name, run_only, triggered, monitor = ByName(), RunOnly(), Triggered(), Monitor()
    callbacks: list[object] = [
        Main(),
        CallbackPipeline([by_name, run_only], name="pair"),
        assert_type(triggered.when(Every(steps=3) & After(epochs=1) | At(steps=[1])), Triggered),
        PeriodicTrigger(Triggered(), every_k_steps=2),
        say,
        rarely,
        monitor,
    ]
    with Loop(callbacks, monitors=[], name="typed", log_every=2) as run:
        assert_type(run, Run)
        assert_type(current_run(), Run | None)
        for epoch in run.epochs(2):
            assert_type(epoch, int)
            for batch in run.batches([1.0, 2.0]):
                run.fire("on_train_forward")
                run.log(loss=run.loss)
                run.log({"batch": batch})
            for _ in run.batches([1.0], mode="val"):
                run.fire("on_val_forward")
                run.log("loss", run.loss)
        run.hyper.register(ObjAttrParam(run_only, "epochs", name="seen"))
        assert_type(run.metrics["val_loss"], float)
        assert_type(run.monitors.get_history("val_loss"), list[tuple[int, float]])
        assert_type(run.hooks, Hooks)
        assert_type(run.hooks.explain(), str)
    assert run_only.epochs == [1, 2]
    assert by_name.losses == [2.0, 4.0, 2.0, 4.0]
    assert triggered.steps == [1, 3]
    assert "scalars" in monitor.kinds


def misuse_loop(run: Run) -> None:
    """Never called: mistakes that a type checker rejects."""
    run.batches([1], mode="test")  # type: ignore[arg-type]
    run.stop = True  # type: ignore[assignment, method-assign]
    run.epochs("3")  # type: ignore[arg-type]
    Loop(epochs=3)  # type: ignore[call-arg]


# A Runner.


def accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs.round() == targets).float().mean()


def mean_error(run: Run) -> torch.Tensor:
    inputs, targets = run.batch
    run.outputs, run.targets = run.model(inputs), targets
    return torch.nn.functional.l1_loss(run.outputs, run.targets)


def use_runner() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = (torch.randn(12, 2), torch.randn(12, 1))
    run_only = RunOnly()
    runner = Runner(
        model,
        optimizer,
        main=mean_error,
        metrics={"accuracy": accuracy},
        lr_scheduler=torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5),
        callbacks=[run_only],
        extra_callbacks=[],
        monitors=[],
        precision="bf16",
    )

    @runner.on("on_epoch_end")
    def known(run: Run) -> None:
        assert run.metrics

    assert_type(runner.fit(data, data, epochs=2, batch_size=4, validate_every=Every(epochs=2)), Run)
    assert_type(runner.validate(data, batch_size=4), dict[str, float])
    assert_type(runner.predict([data[0]]), list[Any])
    assert_type(runner.predict_iter([data[0]]), Iterator[Any])
    function: Callable[[Run], None] = known
    assert function is known
    assert run_only.epochs == [1, 2]


def misuse_runner(runner: Runner) -> None:
    """Never called: mistakes that a type checker rejects."""
    runner.fit([])  # type: ignore[call-arg]
    runner.fit([], epochs="3")  # type: ignore[arg-type]
    runner.fit([], epochs=3, validate_every=2)  # type: ignore[arg-type]
    Runner(None, precision="bfloat16")  # type: ignore[arg-type]


# The rest of the public names.


def use_the_rest() -> None:
    by_name = ByName()
    assert tokenize("a b", callbacks=by_name) == ["A", "B"]
    with guarding("on_tokenize", by_name, limit=1) as block:
        block.result = ["c"]
    assert by_name.words == ["a", "b", "c"]
    undo = install(Tokenizer, "encode", "on_measure", [LambdaCallback(on_measure_end=lambda result: print(result))])
    undo()
    for seed in run_each("seed", [1, 2], by_name):
        assert_type(seed, int)
    declare("on_typed_begin")
    schedule: When = Every(minutes=10)
    assert_type(points(), tuple[Point, ...])
    assert repr(schedule) == "Every(minutes=10)"


def main() -> None:
    use_guards()
    use_functions()
    use_loop()
    use_runner()
    use_the_rest()


if __name__ == "__main__":
    main()
