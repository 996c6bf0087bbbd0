"""Ranks with different numbers of batches: all train to the end, and repeated batches have no weight."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hookpoint.parallel.data.padded_loader import PaddedLoader  # noqa: E402


@pytest.mark.parametrize("done", range(6))
def test_a_padded_loader_resumes_after_any_batch(done):
    data = PaddedLoader(["a", "b", "c"], 5)
    assert len(data) == 5
    source = iter(data.data[data.resume_at(done) :])
    assert list(data.resume(source, done)) == ["a", "b", "c", "c", "c"][done:]


def trained(folder):
    """Train on 2 batches on one rank and 4 on the other, with each strategy: in one go, and with a stop in the padding."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

    from hookpoint import DataParallel, LambdaCallback, MainCallback, Runner, Sharded
    from hookpoint.callbacks import ModelSaver

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    inputs = torch.arange(48.0).view(24, 2).sin()
    data = TensorDataset(inputs, inputs.cos())
    strategies, found = {"data": DataParallel, "sharded": Sharded}, {}

    def fit(kind, *callbacks, accumulate=1, shuffle=False, workdir=None, epochs=2, main=None):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Dropout(0.2 if shuffle else 0.0), nn.Linear(8, 2))
        indices = range(8) if rank == 0 else range(8, 24)
        loader = DataLoader(data, batch_size=4, sampler=SubsetRandomSampler(indices))
        runner = Runner(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            nn.functional.mse_loss,
            callbacks=callbacks,
            extra_callbacks=[],
            monitors=[],
            accumulate=accumulate,
            strategy=strategies[kind](),
            workdir=workdir,
            seed=1,
            main=main,
        )
        batches = loader if shuffle else [[column[n : n + 4] for column in data.tensors] for n in list(indices)[::4]]
        run = runner.fit(batches, epochs=epochs)
        weights = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in model.parameters()]
        return {
            "weights": torch.cat([one.detach().flatten() for one in weights]).tolist(),
            "loss": run.metrics["loss"],
            "step": run.step,
            "samples": run.samples,
        }

    for kind in strategies:
        for accumulate in (1, 2):
            found[f"{kind} {accumulate}"] = fit(kind, accumulate=accumulate)
        saver = ModelSaver()
        found[f"{kind} at once"] = fit(kind, saver, shuffle=True, workdir=f"{folder}/{kind}-at-once")
        stop = LambdaCallback(on_train_iter_end=lambda run: run.stop("here", alike=True) if run.iteration == 6 else None)
        fit(kind, saver, stop, shuffle=True, workdir=f"{folder}/{kind}")
        found[f"{kind} in two"] = fit(kind, saver, shuffle=True, workdir=f"{folder}/{kind}")

    class Own(MainCallback):
        def on_iter_backward(self, run):
            run.loss.backward()

    try:
        fit("data", main=Own())
    except Exception as error:
        found["own"] = str(error)
    return found


def test_all_ranks_train_until_the_last_batch_of_any_rank(launch, tmp_path):
    first, second = launch(trained, folder=str(tmp_path)).results
    for name, one in first.items():
        assert name == "own" or one["weights"] == second[name]["weights"]
    inputs = torch.arange(48.0).view(24, 2).sin()
    batches = [[(inputs[n : n + 4], inputs[n : n + 4].cos()) for n in part] for part in (range(0, 8, 4), range(8, 24, 4))]
    for accumulate in (1, 2):
        weights, loss = by_hand(batches, accumulate)
        for kind in ("data", "sharded"):
            for rank, result in enumerate((first, second)):
                found = result[f"{kind} {accumulate}"]
                assert found["step"] == 8 // accumulate
                assert found["samples"] == (16, 32)[rank]
                assert found["loss"] == pytest.approx(loss, rel=1e-5)
                assert found["weights"] == pytest.approx(weights, rel=1e-4, abs=1e-6)
    for kind in ("data", "sharded"):
        assert first[f"{kind} at once"]["weights"] == first[f"{kind} in two"]["weights"]
        assert first[f"{kind} at once"]["step"] == first[f"{kind} in two"]["step"] == 8
    for result in (first, second):
        assert "different numbers of training batches: 2, 4. A custom on_iter_backward needs the same number" in result["own"]


def by_hand(batches, accumulate):
    """Return the weights and the last epoch's loss of one process that averages over the ranks that have a batch."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        total = 0.0
        for number in range(4):
            here = [part[number] for part in batches if number < len(part)]
            losses = [torch.nn.functional.mse_loss(model(inputs), targets) for inputs, targets in here]
            (sum(losses) / len(losses) / accumulate).backward()
            total += sum(loss.item() for loss in losses)
            if (number + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
    return torch.cat([one.detach().flatten() for one in model.parameters()]).tolist(), total / 6
