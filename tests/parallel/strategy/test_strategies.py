"""Strategies compute the numbers of a single process on the global batch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

KINDS = ("data", "sharded")


def trained(kinds, epochs=5, samples=160, joint=16, accumulate=1, clip=None, ema=False, cut=None):
    """Train a small network with each strategy; return weights, metrics and steps by strategy."""
    import os

    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    from hookpoint import DataParallel, LambdaCallback, Runner, Sharded
    from hookpoint import callbacks as cb

    torch.set_num_threads(1)
    strategies = {"data": DataParallel, "sharded": Sharded}
    found = {}
    for kind in kinds:
        generator = torch.Generator().manual_seed(1)
        inputs, targets = torch.randn(samples, 6, generator=generator), torch.randn(samples, 3, generator=generator)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Sequential(nn.Linear(16, 17), nn.Tanh()), nn.Linear(17, 3))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        average = cb.SwapEMAWeights(0.9)
        callbacks = [average] if ema else []
        if cut is not None:
            callbacks.append(
                LambdaCallback(on_iter_end=lambda run, cut=cut: run.stop_epoch() if run.batch_idx == cut else None)
            )
        runner = Runner(
            model,
            optimizer,
            nn.functional.mse_loss,
            callbacks=[*callbacks, cb.GradientStats(every=1, updates=True)],
            extra_callbacks=[],
            monitors=[],
            accumulate=accumulate,
            clip_grad_norm=clip,
            strategy=strategies[kind.split()[0]](),
        )
        loader = DataLoader(TensorDataset(inputs, targets), batch_size=joint // int(os.environ.get("WORLD_SIZE", "1")))
        run = runner.fit(loader, (inputs[:31], targets[:31]), epochs=epochs, batch_size=5)
        weights = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in model.parameters()]
        found[kind] = {
            "weights": torch.cat([one.detach().flatten() for one in weights]).tolist(),
            "average": torch.cat([one.flatten() for one in average.weights().values()]).tolist() if ema else [],
            "metrics": {name: float(value) for name, value in run.metrics.items()},
            "step": run.step,
        }
    return found


def is_near(one, other):
    ours, theirs = torch.tensor(one, dtype=torch.float64), torch.tensor(other, dtype=torch.float64)
    return bool((ours - theirs).norm() <= 1e-5 * theirs.norm())


OPTIONS = [
    pytest.param({}, id="plain"),
    pytest.param({"accumulate": 3, "clip": 0.3, "ema": True, "samples": 164, "epochs": 2}, id="all at once"),
    pytest.param({"accumulate": 3, "clip": 0.3, "epochs": 4}, id="accumulated and clipped", marks=pytest.mark.slow),
    pytest.param({"ema": True, "samples": 164, "epochs": 3}, id="averaged", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("options", OPTIONS)
def test_two_ranks_train_like_one_process_on_the_global_batch(launch, sample, options):
    options = options or {"epochs": sample(3, 5)}
    one = trained(["data"], **options)["data"]
    first, second = launch(trained, kinds=KINDS, **options).results
    is_plain = list(options) == ["epochs"]
    again = launch(trained, kinds=sample(KINDS[:1], KINDS), **options).results[0] if is_plain else {}
    assert first == second  # all values, on both ranks
    for kind in KINDS:
        two = first[kind]
        assert two["step"] == one["step"]
        assert is_near(two["weights"], one["weights"])
        assert is_near(two["average"], one["average"])
        assert is_near(list(two["metrics"].values()), [one["metrics"][name] for name in two["metrics"]])
        if is_plain:
            assert two["step"] == 10 * options["epochs"]
            assert again.get(kind, two) == two  # to the last bit, in new processes


def test_a_window_cut_short_steps_with_the_gradients_of_all_ranks(launch):
    options = {"accumulate": 4, "epochs": 2, "cut": 4}
    first, _ = launch(trained, kinds=KINDS, **options).results
    for kind in KINDS:
        assert len(first[kind]["weights"]) == 455
        assert first[kind]["step"] in (3, 4)  # a request of one rank takes effect one step later
    assert is_near(first["data"]["weights"], first["sharded"]["weights"])
