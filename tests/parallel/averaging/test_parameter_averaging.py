from __future__ import annotations

import os
import pickle

import pytest

from hookpoint.core.errors import BadLoop
from hookpoint.storage.load_weights import load_weights
from hookpoint.storage.run_file import read_run_file
from hookpoint.storage.verify import verify

torch = pytest.importorskip("torch")
ParameterAveraging = pytest.importorskip("hookpoint.parallel.averaging.parameter_averaging").ParameterAveraging

SAME = ("step", "weights", "optimizer", "rate", "generators", "seen", "metrics", "scalars")


@pytest.mark.parametrize("options", [{"period": 0}, {"period": 2.5}, {"warmup": -1}, {"period": True}])
def test_invalid_options_raise(options):
    with pytest.raises(BadLoop, match="must be an integer >= "):
        ParameterAveraging(**options)


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf"), "many", True])
def test_an_invalid_weight_raises(weight):
    with pytest.raises(BadLoop, match="weight must be a finite number >= 0"):
        ParameterAveraging(weight=weight)


def test_ranks_are_averaged_by_weight_and_may_have_weight_0(launch):
    def federate():
        import torch
        from torch import nn

        from hookpoint import Callback, ParameterAveraging, Runner

        rank = int(os.environ["RANK"])

        class Rounds(Callback):
            def __init__(self):
                super().__init__()
                self.seen = []

            def on_epoch_end(self, run):
                self.seen.append(run.model.weight.item())

        def train(weight, epochs=2):
            model = nn.Linear(1, 1, bias=False)
            nn.init.zeros_(model.weight)
            data = [(torch.ones(1, 1), torch.full((1, 1), 2.0 * rank + 1))]  # each rank has its own
            optimizer, rounds = torch.optim.SGD(model.parameters(), lr=0.5), Rounds()
            options = {"callbacks": [rounds], "extra_callbacks": [], "monitors": []}
            strategy = ParameterAveraging(period=1, optimizer_state=False, weight=weight)
            run = Runner(model, optimizer, nn.MSELoss(), strategy=strategy, **options).fit(data, epochs=epochs)
            return [run.step, rounds.seen]

        found = {"same": train(None), "weighted": train(3 - 2 * rank), "second only": train(lambda: rank)}
        try:
            train(0)
        except ValueError as error:
            found["nobody"] = str(error)
        return found

    first, second = launch(federate).results
    assert first == second
    # With this rate, a step sets the weight to the target: 1 on the first rank, 3 on the second.
    assert first["same"] == [2, [2.0, 2.0]]
    assert first["weighted"] == [2, [1.5, 1.5]]
    assert first["second only"] == [2, [3.0, 3.0]]
    assert first["nobody"].startswith("ParameterAveraging: the weight is 0 on all ranks.")


def test_parameter_averaging_can_be_pickled():
    again = pickle.loads(pickle.dumps(ParameterAveraging(3, warmup=2, optimizer_state=False)))
    assert (again.period, again.warmup, again.optimizer_state) == (3, 2, False)


def test_ranks_are_equal_after_each_average_and_differ_in_between(launch, tmp_path):
    def average(folder, samples=88):

        import torch
        from subject import digest
        from torch import nn
        from torch.utils.data import DataLoader, TensorDataset

        from hookpoint import Callback, Every, ParameterAveraging, Runner
        from hookpoint import callbacks as cb

        class Digests(Callback):
            def __init__(self):
                super().__init__()
                self.steps, self.validated, self.epochs = {}, [], []

            def on_train_iter_end(self, run):
                weights, momentum = run.model.state_dict().values(), moments(run.optimizer)
                self.steps.setdefault(run.step, [digest(list(weights)), digest(momentum)])

            def on_val_epoch_end(self, run):
                self.validated.append(digest(list(run.model.state_dict().values())))

            def on_epoch_end(self, run):
                self.epochs.append(digest(list(run.model.state_dict().values())))

        def moments(optimizer):
            return [value for kept in optimizer.state.values() for value in kept.values()]

        def train(*callbacks, val=None, accumulate=1, clip=None, workdir=None, **options):
            numbers = torch.Generator().manual_seed(1)
            data = TensorDataset(torch.randn(samples, 6, generator=numbers), torch.randn(samples, 3, generator=numbers))
            torch.manual_seed(int(os.environ["RANK"]))  # the chief's weights are used
            model = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
            digests = Digests()
            runner = Runner(
                model,
                optimizer,
                nn.functional.mse_loss,
                callbacks=[*callbacks, digests],
                extra_callbacks=[],
                monitors=[],
                accumulate=accumulate,
                clip_grad_norm=clip,
                seed=3,
                workdir=workdir,
                strategy=ParameterAveraging(**options),
            )
            schedule = {"validate_every": None if workdir else Every(steps=2), "batch_size": 5} if val else {}
            run = runner.fit(DataLoader(data, batch_size=4), val, epochs=2, **schedule)
            return {
                "steps": digests.steps,
                "validated": digests.validated,
                "epochs": digests.epochs,
                "end": digest(list(model.state_dict().values())),
                "metrics": {name: float(value) for name, value in run.metrics.items()},
            }

        val = (torch.linspace(-1, 1, 90).view(15, 6), torch.zeros(15, 3))
        ema = cb.SwapEMAWeights(0.9)
        return {
            "plain": train(period=3, warmup=2),
            "own momentum": train(period=3, warmup=2, optimizer_state=False),
            "windows": train(period=2, accumulate=3, clip=0.1),
            "validated": train(period=3, warmup=2, val=val),
            "averaged": train(ema, period=3, val=val),
            "kept": train(cb.MinSaver("val_loss"), period=5, val=val, workdir=folder),
        }

    first, second = launch(average, folder=str(tmp_path / "run")).results
    alike = {
        name: [step for step, found in first[name]["steps"].items() if found[0] == second[name]["steps"][step][0]]
        for name in first
    }
    assert list(map(int, alike["plain"])) == [1, 2, 5, 8, 11, 14, 17, 20]
    assert alike["own momentum"] == alike["validated"] == alike["plain"]
    momentum = [
        step
        for name in ("plain", "own momentum")
        for step in alike["plain"]
        if first[name]["steps"][step][1] == second[name]["steps"][step][1]
    ]
    assert list(map(int, momentum)) == [1, 2, 5, 8, 11, 14, 17, 20, 1, 2]
    assert sorted(map(int, first["windows"]["steps"])) == list(range(9))  # 4 steps of 3 batches in an epoch, the last of 2
    assert {"2", "4", "6", "8"} <= set(alike["windows"])
    assert "3" not in alike["windows"]
    # A validation between two averages evaluates the average and changes nothing.
    assert first["validated"]["steps"] == first["plain"]["steps"]
    for name in ("validated", "averaged", "kept"):
        assert first[name]["validated"] == second[name]["validated"]
        assert first[name]["metrics"] == second[name]["metrics"]
        assert len(set(first[name]["validated"])) == (2 if name == "kept" else 11)
    for name in first:
        assert first[name]["epochs"] == second[name]["epochs"]
        assert first[name]["end"] == second[name]["end"] == first[name]["epochs"][-1]
    # The best checkpoint has the weights that were validated.
    best = load_weights(tmp_path / "run" / "checkpoints" / "best-val_loss")
    layers = torch.nn.Linear(6, 12), torch.nn.BatchNorm1d(12), torch.nn.ReLU(), torch.nn.Linear(12, 3)
    model = torch.nn.Sequential(*layers)
    model.load_state_dict(best)
    model.eval()
    with torch.no_grad():
        loss = torch.nn.functional.mse_loss(model(torch.linspace(-1, 1, 90).view(15, 6)), torch.zeros(15, 3))
    known = read_run_file(tmp_path / "run")["best"]["val_loss"]["value"]
    assert loss.item() == pytest.approx(known, rel=1e-6)


def test_a_run_interrupted_between_two_averages_resumes_bit_for_bit(launch, sample, tmp_path):
    def exact(folder, names, epochs):
        from contextlib import suppress
        from functools import partial

        import subject
        from subject import Cut, Ledger

        from hookpoint import callbacks as cb

        def extra(name):
            return (cb.SwapEMAWeights(0.8),) if name == "averaged" else ()

        train, found = partial(subject.train, epochs=epochs), {}
        for name in names:
            more = partial(extra, name)
            whole = train("averaging", f"{folder}/{name}-whole", more=more())
            stopped = train("averaging", f"{folder}/{name}", more=more(), ledger=Ledger(stop_at=5))
            assert stopped["stop"] == "it was told to", stopped
            for cut in (7, 11):  # the last checkpoints are of steps 6 and 10, averages of 4, 8 and 12
                with suppress(Cut):
                    raise AssertionError(train("averaging", f"{folder}/{name}", more=more(), ledger=Ledger(fail_at=cut)))
            found[name] = [whole, train("averaging", f"{folder}/{name}", more=more())]
        return found

    names = sample(["averaged"], ["plain", "averaged"])
    results = launch(exact, folder=str(tmp_path), names=names, epochs=sample(2, 3)).results
    for rank, result in enumerate(results):
        for name in names:
            whole, resumed = result[name]
            assert [what for what in SAME if whole[what] != resumed[what]] == [], (name, rank)
    for name in names:
        assert results[0][name][0]["weights"] == results[1][name][0]["weights"]
        assert verify(tmp_path / name).ok
        assert load_weights(tmp_path / name)["0.weight"].shape == (12, 6)
        assert len(read_run_file(tmp_path / name)["resumed"]) == 3


@pytest.mark.skipif(os.environ.get("HOOKPOINT_FAULTS") != "all", reason="long: HOOKPOINT_FAULTS=all")
def test_a_process_killed_in_the_middle_of_a_period_changes_no_results(launch, tmp_path):
    def whole(folder):
        from subject import train

        return train("averaging", f"{folder}/whole")

    def killed(folder):
        import signal

        from subject import RANK, train

        from hookpoint import Callback

        class Kill(Callback):
            def on_train_iter_begin(self, run):
                if RANK == 1 and run.step == 7 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                    os.kill(os.getpid(), signal.SIGKILL)

        return train("averaging", f"{folder}/run", more=(Kill(),))

    expected = launch(whole, folder=str(tmp_path)).results
    options = ("--max-restarts", "2", "--monitor-interval", "0.1")
    results = launch(killed, torchrun=options, folder=str(tmp_path)).results
    for one, other in zip(results, expected, strict=True):
        assert [what for what in SAME if one[what] != other[what]] == []
    assert len(read_run_file(tmp_path / "run")["resumed"]) == 1


def test_signals_stops_and_failures_of_one_rank_reach_all_ranks(launch, tmp_path):
    def meet(folder):
        import signal
        from functools import partial

        import subject
        import torch
        from subject import RANK, Ledger

        from hookpoint import Callback, ParameterAveraging, Runner
        from hookpoint.core.errors import BadLoop

        class At(Callback):
            def __init__(self, step, does):
                super().__init__()
                self.step, self.does, self.rates = step, does, []

            def on_train_iter_begin(self, run):
                self.rates.append(run.optimizer.param_groups[0]["lr"])
                if RANK == 1 and run.step == self.step:
                    self.does(run)

        def fail(run):
            raise KeyError("lost")

        train, found = partial(subject.train, epochs=2, every=100), {}
        ledger = Ledger()
        try:
            train("averaging", f"{folder}/run", more=(At(5, lambda run: os.kill(os.getpid(), signal.SIGTERM)),), ledger=ledger)
        except SystemExit as end:
            found["signal"] = [end.code, ledger.steps[-1]]
        found["stop"] = [(one := train("averaging", f"{folder}/stop", more=(At(4, lambda run: run.stop("enough")),)))["step"]]
        found["stop"].append(one["stop"])
        model = torch.nn.Linear(2, 1)
        try:
            Runner(model, torch.optim.SGD(model.parameters()), precision="fp16", strategy=ParameterAveraging())
        except BadLoop as error:
            found["fp16"] = str(error)
        try:
            train("averaging", f"{folder}/failure", more=(At(6, fail),))
        except (KeyError, RuntimeError) as error:
            found["failure"] = [type(error).__name__, str(error)]
        return found

    first, second = launch(meet, folder=str(tmp_path)).results
    assert first["signal"] == second["signal"]
    assert first["signal"] in ([143, 6], [143, 7])
    assert first["stop"] == second["stop"]
    assert first["stop"] in ([5, "enough"], [6, "enough"])
    assert (first["failure"][0], second["failure"][0]) == ("OutOfStep", "KeyError")
    assert "ParameterAveraging does not support precision='fp16'" in first["fp16"]
    assert verify(tmp_path / "run").ok
    assert (tmp_path / "stop" / "checkpoints" / "last").exists()


def test_a_different_number_of_processes_resumes_from_the_average(launch, tmp_path):
    def begin(folder):
        from subject import Ledger, train

        return train("averaging", f"{folder}/run", norm=False, ledger=Ledger(stop_at=2))

    def go_on(folder):
        from subject import train

        return train("averaging", f"{folder}/run", norm=False, allow_world_change=True, epochs=2, every=100)

    launch(begin, folder=str(tmp_path))
    average = load_weights(tmp_path / "run")
    assert average["0.weight"].shape == (12, 6)
    results = launch(go_on, ranks=3, folder=str(tmp_path)).results
    assert len({one["weights"] for one in results}) == 1
    assert read_run_file(tmp_path / "run")["inexact"] == ["from step 2 on: 3 ranks instead of 2"]
