from __future__ import annotations

import json
import os
import pickle

import pytest

from hookpoint.core.errors import BadLoop
from hookpoint.storage.load_weights import load_weights
from hookpoint.storage.run_file import read_run_file
from hookpoint.storage.verify import verify

torch = pytest.importorskip("torch")
AsyncSGD = pytest.importorskip("hookpoint.parallel.async_sgd.async_sgd").AsyncSGD


@pytest.mark.parametrize("options", [{"staleness": -1}, {"staleness": 1.5}, {"staleness": True}, {"wait_seconds": 0}])
def test_invalid_options_raise(options):
    with pytest.raises(BadLoop, match="AsyncSGD"):
        AsyncSGD(**options)


def test_async_sgd_can_be_pickled():
    again = pickle.loads(pickle.dumps(AsyncSGD(3, wait_seconds=20)))
    assert (again.staleness, again.wait_seconds) == (3, 20)


def served(bounds, accumulate=(1,), slow=0.004):
    """Train with each bound and a slow worker; return traces, weights, and the server's threads that are left."""
    import os
    import threading
    import time

    import torch
    from subject import digest
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    from hookpoint import AsyncSGD, Callback, Every, Runner

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    class Slow(Callback):
        def on_backward_begin(self, run):
            time.sleep(slow if rank == size - 1 else 0)

    class Digests(Callback):
        def __init__(self):
            super().__init__()
            self.validated, self.epochs, self.rates = [], [], []

        def on_val_epoch_end(self, run):
            self.validated.append(digest(list(run.model.state_dict().values())))

        def on_epoch_end(self, run):
            self.epochs.append(digest(list(run.model.state_dict().values())))

    def train(bound, many, factor=1.0):
        numbers = torch.Generator().manual_seed(1)
        samples = 20 * size * many
        data = TensorDataset(torch.randn(samples, 6, generator=numbers), torch.randn(samples, 3, generator=numbers))
        torch.manual_seed(rank)  # the chief's weights are used
        model = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor)
        strategy, digests = AsyncSGD(bound, wait_seconds=30), Digests()
        runner = Runner(
            model,
            optimizer,
            nn.functional.mse_loss,
            lr_scheduler=rates,
            lr_scheduler_on="step",
            callbacks=[Slow(), digests],
            extra_callbacks=[],
            monitors=[],
            accumulate=many,
            clip_grad_norm=1.0,
            log_every=7,
            seed=3,
            strategy=strategy,
        )
        val = DataLoader(TensorDataset(data.tensors[0][:9], data.tensors[1][:9]), batch_size=3)
        before = digest(list(model.parameters()))
        run = runner.fit(DataLoader(data, batch_size=2), val, epochs=2, validate_every=Every(steps=6))
        return {
            "trace": [list(one) for one in strategy.trace],
            "step": run.step,
            "metrics": {name: float(value) for name, value in run.metrics.items()},
            "validated": digests.validated,
            "epochs": digests.epochs,
            "end": digest(list(model.state_dict().values())),
            "counts": sorted({float(kept["step"]) for kept in optimizer.state.values()}),
            "moved": digest(list(model.parameters())) != before,
            "threads": [one.name for one in threading.enumerate() if one.name.startswith("hookpoint-server")],
        }

    found = {f"{bound} {many}": train(bound, many) for bound in bounds for many in accumulate}
    found["frozen"] = train(2, 1, factor=0.0)
    return found


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_no_gradient_is_older_than_the_bound(launch, sample, ranks):
    options = {"bounds": sample([0, 4], [0, 1, 4]), "accumulate": [1, 3] if ranks == 2 else [1]}
    first, *others = launch(served, ranks=ranks, **options).results
    for name, chief in first.items():
        bound = int(name.split()[0]) if name != "frozen" else 2
        trace = chief["trace"]
        assert chief["step"] == 20
        assert [applied for _, _, applied in trace] == list(range(20 * ranks))
        assert sorted(worker for worker, _, _ in trace) == sorted(list(range(ranks)) * 20)
        stale = [applied - computed for _, computed, applied in trace]
        assert 0 <= min(stale) <= max(stale) <= bound
        assert max(stale) > 0 or bound == 0
        assert chief["counts"] == [20.0 * ranks]  # one optimizer made all steps
        assert chief["threads"] == []
        assert len(chief["validated"]) == 3
        for other in others:  # all ranks validate and return the same model
            for what in ("step", "metrics", "validated", "epochs", "end"):
                assert other[name][what] == chief[what]
            assert (other[name]["trace"], other[name]["counts"], other[name]["threads"]) == ([], [], [])
        assert chief["epochs"][-1] == chief["end"]
    assert first["4 1"]["moved"]
    assert len(set(first["frozen"]["validated"])) > 1  # the statistics of batch norm


def test_signals_stops_and_failures_of_one_rank_reach_all_ranks(launch, tmp_path):
    def meet(folder):
        import os
        import signal
        import threading
        from functools import partial

        import subject
        import torch
        from subject import RANK, Ledger

        from hookpoint import AsyncSGD, Callback, Every, Runner

        class At(Callback):
            def __init__(self, step, does, rank=1, point=""):
                super().__init__()
                self.step, self.does, self.rank, self.rates = step, does, rank, []

            def on_train_iter_begin(self, run):
                self.rates.append(run.hyper["weight_decay"])
                if self.rank == RANK and run.step == self.step:
                    self.does(run)

        class Inside(At):
            def on_train_iter_begin(self, run):
                pass

            def on_backward_end(self, run):
                if run.step == self.step:
                    self.does(run)

        class Skip(At):
            may_skip = True

            def on_train_iter_begin(self, run):
                pass

            def on_iter_begin(self, run):
                if run.mode == "train" and run.batch_idx in (self.step, 5):  # of six
                    self.does(run)

        def fail(run):
            raise KeyError("lost")

        def set_decay(run):
            run.hyper["weight_decay"] = 0.125

        train, found, ledger = partial(subject.train, epochs=2, every=100), {}, Ledger()
        try:
            train("async", f"{folder}/run", more=(At(5, lambda run: os.kill(os.getpid(), signal.SIGTERM)),), ledger=ledger)
        except SystemExit as end:
            found["signal"] = [end.code, ledger.steps[-1]]
        found["resumed"] = train("async", f"{folder}/run")
        stopped = train("async", f"{folder}/stop", more=(At(3, lambda run: run.stop("enough")),))
        found["stop"] = [stopped["step"], stopped["stop"]]
        setting = At(3, set_decay)
        train("async", f"{folder}/setting", more=(setting,), epochs=1, every=2)
        found["setting"] = setting.rates
        for name, callback in {
            "all talk": Inside(3, lambda run: run.gather(1)),
            "rank 1 fails": At(5, fail),
            "rank 0 fails": At(5, fail, rank=0),
        }.items():
            try:
                train("async", f"{folder}/{name}", more=(callback,))
            except (KeyError, RuntimeError, ValueError) as error:
                threads = [one.name for one in threading.enumerate() if one.name.startswith("hookpoint-server")]
                found[name] = [type(error).__name__, str(error), threads]
        # No rank waits for a step that is skipped where ranks may communicate, not even at the end of a pass.
        found["skipped"] = train("async", f"{folder}/skipped", more=(Skip(3, lambda run: run.skip_step()),))["steps"]
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        data, options = (torch.ones(16, 2), torch.zeros(16, 1)), {"extra_callbacks": [], "monitors": []}
        runner = Runner(model, optimizer, torch.nn.MSELoss(), strategy=AsyncSGD(), accumulate=2, **options)
        try:
            runner.fit(data, data, epochs=1, batch_size=4, validate_every=Every(iterations=1))
        except (RuntimeError, ValueError) as error:
            found["validated inside"] = str(error)
        runner = Runner(model, optimizer, torch.nn.MSELoss(), strategy=AsyncSGD(), extra_callbacks=[], monitors=[])
        runner.fit((torch.ones(8, 2), torch.zeros(8, 1)), epochs=1, batch_size=4)
        before = model.weight.detach().clone()
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()  # after the run, the optimizer steps locally again
        found["stepped"] = (before - model.weight.detach()).tolist()
        return found

    first, second = launch(meet, folder=str(tmp_path)).results
    assert first["signal"] == second["signal"]
    assert first["signal"][0] == 143
    assert 6 <= first["signal"][1] <= 8  # where the ranks communicate anyway, or two steps later
    assert first["stop"] == second["stop"]
    assert first["stop"][1] == "enough"
    assert first["setting"] == second["setting"]
    assert set(first["setting"]) == {0, 0.125}
    assert (first["rank 1 fails"][0], second["rank 1 fails"][0]) == ("OutOfStep", "KeyError")
    assert (first["rank 0 fails"][0], second["rank 0 fails"][0]) == ("KeyError", "OutOfStep")
    for result in (first, second):
        assert any("between a batch and its step" in one["all talk"][1] for one in (first, second))
        for name in ("rank 1 fails", "rank 0 fails", "all talk"):
            assert result[name][2] == []
    assert first["skipped"] == second["skipped"]
    assert first["skipped"] == [1, 2, 3, 3, 4, 4, 5, 6, 7, 7, 8, 8]
    assert any("between a batch and its step" in one["validated inside"] for one in (first, second))
    assert first["resumed"]["weights"] == second["resumed"]["weights"]
    assert first["stepped"] == second["stepped"] == [pytest.approx([0.5, 0.5])]
    facts = read_run_file(tmp_path / "run")
    assert (facts["status"], facts["step"]) == ("finished", 12)
    assert facts["inexact"] == [f"resumed at step {first['signal'][1]}: gradients were applied in order of arrival"]
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert "inexact_resume" in json.dumps(events)
    assert verify(tmp_path / "run").ok
    assert load_weights(tmp_path / "run")["0.weight"].shape == (12, 6)


@pytest.mark.skipif(os.environ.get("HOOKPOINT_FAULTS") != "all", reason="long: HOOKPOINT_FAULTS=all")
def test_a_run_with_killed_processes_finishes_after_restarts(launch, tmp_path):
    def killed(folder):
        import os
        import signal

        from subject import RANK, train

        from hookpoint import Callback

        class Kill(Callback):
            def on_backward_end(self, run):
                attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
                if run.step == 7 + attempt and attempt < 2 and 1 - attempt == RANK:
                    os.kill(os.getpid(), signal.SIGKILL)

        return train("async", f"{folder}/run", more=(Kill(),))

    options = ("--max-restarts", "4", "--monitor-interval", "0.1")
    done = launch(killed, torchrun=options, folder=str(tmp_path))
    first, second = done.results
    assert first["weights"] == second["weights"]
    assert first["step"] == second["step"] == 18
    assert "terminate called" not in done.printed
    facts = read_run_file(tmp_path / "run")
    assert len(facts["resumed"]) == len(facts["inexact"]) == 2
    assert verify(tmp_path / "run").ok
