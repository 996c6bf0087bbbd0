"""A model, an optimizer or a workdir that is used with one strategy and then with another."""

from __future__ import annotations

import pytest

from hookpoint.core.errors import BadLoop
from hookpoint.storage.load_weights import load_weights

torch = pytest.importorskip("torch")
hookpoint = pytest.importorskip("hookpoint")


def test_a_strategy_class_raises():
    with pytest.raises(BadLoop, match="strategy=AsyncSGD is a class"):
        hookpoint.Runner(torch.nn.Linear(2, 1), strategy=hookpoint.AsyncSGD)


def test_a_model_can_change_its_strategy_unless_it_is_already_split(launch):
    def reuse():
        import torch
        from subject import RANK, digest
        from torch import nn

        from hookpoint import (
            Callback,
            DataParallel,
            ParameterAveraging,
            PipelineParallel,
            Runner,
            Sharded,
            TensorParallel,
        )
        from hookpoint import callbacks as cb

        data = torch.randn(48, 6, generator=torch.Generator().manual_seed(1)), torch.zeros(48, 3)
        strategies = {
            "data": DataParallel,
            "sharded": Sharded,
            "tensor": lambda: TensorParallel({"0": "colwise", "2": "rowwise"}),
            "pipeline": lambda: PipelineParallel((2,), microbatches=2),
            "averaging": lambda: ParameterAveraging(3),
        }

        class Weights(Callback):
            def __init__(self):
                super().__init__()
                self.digests = []

            def on_train_iter_end(self, run):
                self.digests.append(digest(list(run.model.state_dict().values())))

        def train(strategy, model, optimizer, *callbacks):
            options = {"callbacks": callbacks, "extra_callbacks": [], "monitors": [], "seed": 3, "strategy": strategy}
            Runner(model, optimizer, nn.MSELoss(), **options).fit(data, data, epochs=2, batch_size=4)

        def made(*, norm=False):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16) if norm else nn.ReLU(), nn.Linear(16, 3))
            return model, torch.optim.SGD(model.parameters(), lr=0.05)

        found = {}
        for name, again in (("same", True), ("other", False)):
            model, optimizer = made()
            strategy, weights = ParameterAveraging(3), Weights()
            train(strategy, model, optimizer)
            train(strategy if again else ParameterAveraging(3), model, optimizer, weights)
            found[name] = weights.digests
        if RANK == 0:
            for _ in range(6):  # after the run: no communication
                optimizer.step()
        for name in ("tensor data", "pipeline data", "sharded averaging"):
            model, optimizer = made()
            before, after = name.split()
            train(strategies[before](), model, optimizer)
            try:
                train(strategies[after](), model, optimizer)
            except ValueError as error:
                found[name] = str(error)
        for name in ("data", "averaging"):
            model, optimizer = made(norm=True)
            train(strategies[name](), model, optimizer, cb.StochasticWeightAveraging(start=1))
            found[f"statistics of {name}"] = {
                key: one.tolist() for key, one in model[1].state_dict().items() if "running" in key
            }
        return found

    first, second = launch(reuse).results
    for name in ("same", "other"):
        alike = [step for step, one in enumerate(first[name], 1) if one == second[name][step - 1]]
        assert alike == [3, 6, 9, 12]
    for name in ("tensor data", "pipeline data", "sharded averaging"):
        assert "the model is already split" in first[name]
        assert first[name] == second[name]
    for name in ("statistics of data", "statistics of averaging"):
        assert first[name] == second[name]


def test_a_checkpoint_with_differing_copies_resumes_only_with_its_strategy(launch, tmp_path):
    def go_on(folder):
        from subject import Ledger, train

        from hookpoint import Callback
        from hookpoint import callbacks as cb

        class Kept(Callback):
            def on_train_iter_end(self, run):
                if run.step == 2:  # when a checkpoint is made, between two averages
                    found["averages"] = {name: one.tolist() for name, one in average.average.averages.items()}

        found, average = {}, cb.SwapEMAWeights(0.8)
        train("averaging", f"{folder}/run", more=(average, Kept()), ledger=Ledger(stop_at=2))
        for kind in ("data", "sharded", "async"):
            try:
                train(kind, f"{folder}/run", more=(cb.SwapEMAWeights(0.8),))
            except RuntimeError as error:
                found[kind] = [type(error).__name__, str(error)]
        train("data", f"{folder}/alike", ledger=Ledger(stop_at=2))
        try:
            train("averaging", f"{folder}/alike")
        except RuntimeError as error:
            found["averaging"] = [type(error).__name__, str(error)]
        return found

    first, second = launch(go_on, folder=str(tmp_path)).results
    for kind in ("data", "sharded", "async", "averaging"):
        for result in (first, second):
            assert result[kind][0] == "CannotResume"
            assert "copies" in result[kind][1]
    # The averages of all ranks are loaded with equal weight.
    loaded = load_weights(tmp_path / "run" / "checkpoints" / "step-00000002", averaged=True)
    assert first["averages"]["0.weight"] != second["averages"]["0.weight"]
    for name, value in first["averages"].items():
        mean = (torch.tensor(value) + torch.tensor(second["averages"][name])) / 2
        torch.testing.assert_close(loaded[name], mean)
