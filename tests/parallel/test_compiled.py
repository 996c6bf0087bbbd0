"""Compiled models on multiple ranks: the names in a checkpoint are plain, and a run resumes with or without compiling."""

from __future__ import annotations

import pytest

import hookpoint


@pytest.mark.parametrize("strategy", [pytest.param("DataParallel", marks=pytest.mark.slow), "Sharded"])
def test_a_compiled_model_is_saved_with_plain_names_and_resumes_uncompiled(strategy, launch, tmp_path):
    def train(folder, strategy):
        import torch

        import hookpoint
        from hookpoint.callbacks import ModelSaver

        steps = []
        for name, compiled in {"plain": [False] * 3, "mixed": [True, False, True]}.items():
            options = {"callbacks": [ModelSaver()], "workdir": f"{folder}/{name}", "seed": 1, "monitors": []}
            for epochs, compiles in enumerate(compiled, start=1):
                torch.manual_seed(0)
                model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 2))
                model = torch.compile(model, backend="eager") if compiles else model
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
                chosen = getattr(hookpoint, strategy)()
                runner = hookpoint.Runner(model, optimizer, torch.nn.MSELoss(), strategy=chosen, **options)
                run = runner.fit((torch.ones(16, 2), torch.zeros(16, 2)), epochs=epochs, batch_size=4)
            steps.append(run.step)
        return steps

    for plain, mixed in launch(train, folder=str(tmp_path), strategy=strategy).results:
        assert mixed == plain == 6
    found, wanted = (hookpoint.load_weights(tmp_path / name) for name in ("mixed", "plain"))
    assert sorted(found) == ["0.bias", "0.weight", "1.bias", "1.weight"]
    assert {name: one.tolist() for name, one in found.items()} == {name: one.tolist() for name, one in wanted.items()}


def test_a_loop_with_a_wrapped_and_compiled_model_saves_plain_names(launch, tmp_path):
    def train(workdir):
        import torch
        from torch.nn.parallel import DistributedDataParallel

        from hookpoint import Loop
        from hookpoint.callbacks import ModelSaver

        torch.distributed.init_process_group("gloo")
        around = [
            lambda model: torch.compile(DistributedDataParallel(model), backend="eager"),
            lambda model: DistributedDataParallel(torch.compile(model, backend="eager")),
            DistributedDataParallel,
        ]
        for epochs, wrap in enumerate(around, start=1):
            torch.manual_seed(0)
            model = wrap(torch.nn.Linear(2, 1))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            with Loop([ModelSaver()], model=model, optimizer=optimizer, workdir=workdir) as run:
                for _ in run.epochs(epochs):
                    for batch in run.batches([torch.ones(4, 2)]):
                        optimizer.zero_grad()
                        model(batch).square().mean().backward()
                        optimizer.step()
        return [run.step, run.epoch]

    assert launch(train, workdir=str(tmp_path / "run")).results == [[3, 3], [3, 3]]
    assert sorted(hookpoint.load_weights(tmp_path / "run")) == ["bias", "weight"]
