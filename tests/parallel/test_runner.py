"""A Runner on multiple ranks: data, seeds, samplers, precision, custom forwards, and errors."""

from __future__ import annotations

from itertools import chain

import pytest

torch = pytest.importorskip("torch")


def many_things(strategy):
    """Return the results of many small runs, by subject."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, SequentialSampler, TensorDataset

    from hookpoint import DataParallel, LambdaCallback, MainCallback, Runner, Sharded
    from hookpoint import callbacks as cb
    from hookpoint.core.errors import BadLoop

    class NoEnd:
        def __init__(self, batches):
            self.batches = batches

        def __iter__(self):
            return iter(self.batches)

    def full(value):
        return value.full_tensor() if hasattr(value, "full_tensor") else value

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, found = dist.get_rank(), {}
    inputs = torch.arange(24.0).view(12, 2) / 24
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))

    def runner(*callbacks, model=None, criterion=nn.functional.mse_loss, **options):
        torch.manual_seed(rank)  # the chief's weights are used
        model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 1)) if model is None else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        chosen = {"data": DataParallel, "sharded": Sharded}[strategy](**options.pop("of_strategy", {}))
        return Runner(
            model, optimizer, criterion, callbacks=callbacks, extra_callbacks=[], monitors=[], strategy=chosen, **options
        )

    def whole(model):
        return [value for one in model.state_dict().values() for value in full(one).flatten().tolist()]

    def seen_by(loader, epochs=1, **options):
        seen = []
        look = LambdaCallback(on_train_iter_begin=lambda run: seen.append((run.batch[0][:, 0] * 12).round().int().tolist()))
        one = runner(look, **options)
        one.fit(loader, epochs=epochs)
        return seen, one

    # The chief's weights, its buffers after each step, and dropout per rank
    drawn = []
    one = runner(LambdaCallback(on_train_iter_end=lambda run: drawn.append(float(torch.rand(())))), seed=5)
    one.fit(DataLoader(data, batch_size=3, shuffle=True), epochs=2)
    found["drawn"], found["weights"] = drawn, whole(one.model)

    # The order of the data
    found["shuffled"], _ = seen_by(DataLoader(data, batch_size=3, shuffle=True), epochs=2, seed=5)
    found["in order"], _ = seen_by(DataLoader(data, batch_size=3))
    found["distributed"], _ = seen_by(DataLoader(data, batch_size=3, sampler=DistributedSampler(data)), epochs=2)
    found["no end"], _ = seen_by(NoEnd([data[:2]] * (2 + rank)))
    try:
        seen_by([data[:2]] * rank)
    except BadLoop as error:
        found["uneven"] = str(error)

    # Validation: every sample once
    plain = runner(model=nn.Sequential(nn.Linear(2, 1)))
    with torch.no_grad():
        for parameter in plain.model.parameters():
            parameter.fill_(1.0)
    found["validated"] = [
        plain.validate(DataLoader(TensorDataset(inputs[:7], torch.zeros(7, 1)), batch_size=2)),
        plain.validate((inputs[:1], torch.zeros(1, 1)), batch_size=4),
        plain.validate(
            DataLoader(
                TensorDataset(inputs[:5], torch.zeros(5, 1)),
                batch_sampler=BatchSampler(SequentialSampler(range(4 if rank == 0 else 1)), 1, False),
            )
        ),
    ]
    found["predicted"] = torch.cat(plain.predict((inputs[:5],), batch_size=2)).flatten().tolist()

    # A custom forward and step
    class Own(MainCallback):
        def on_train_forward(self, run):
            run.outputs = run.model(run.batch[0])
            run.loss = run.outputs.square().mean()

        def on_iter_backward(self, run):
            run.optimizer.zero_grad()
            run.loss.backward()
            run.optimizer.step()

    one = runner(main=Own(), model=nn.Sequential(nn.Linear(2, 1)))
    one.fit(DataLoader(data, batch_size=3), epochs=2)
    found["own"] = whole(one.model)

    # Full states can be loaded, and training continues
    one.model.load_state_dict({name: full(value) * 0 + 0.5 for name, value in one.model.state_dict().items()})
    found["loaded"] = whole(one.model)
    kept = one.optimizer.state_dict()
    kept["state"] = {key: {"momentum_buffer": full(value["momentum_buffer"]) * 0 + 2.0} for key, value in kept["state"].items()}
    one.optimizer.load_state_dict(kept)
    found["momentum"] = [float(full(value["momentum_buffer"]).mean()) for value in one.optimizer.state.values()]

    # Hooks
    called = []
    hooks = cb.ModuleHooks("0", forward=lambda module, args, output: called.append(tuple(module.weight.shape)))
    one = runner(hooks)
    one.fit(DataLoader(data, batch_size=3), epochs=1)
    found["hooked"] = called
    try:
        runner(cb.ParameterHooks("*", grad=lambda gradient: None)).fit(DataLoader(data, batch_size=3), epochs=1)
        found["parameters"] = None
    except BadLoop as error:
        found["parameters"] = str(error)
    # The best weights are full tensors, and are restored as shards
    keep = cb.EarlyStopping("val_loss", patience=1, restore_best_weights=True)
    one = runner(keep, cb.CheckNumerics(), model=nn.Sequential(nn.Linear(2, 1)))
    found["best"] = one.fit(DataLoader(data, batch_size=3), DataLoader(data, batch_size=3), epochs=3).metrics["val_loss"]

    if strategy == "sharded":
        seen = []
        dtypes = LambdaCallback(on_train_iter_end=lambda run: seen.extend([str(run.outputs.dtype), str(run.loss.dtype)]))
        small = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1))
        one = runner(dtypes, of_strategy={"precision": "bf16", "wrap": (nn.Linear,)}, model=small)
        run = one.fit(DataLoader(data, batch_size=3), epochs=1)
        found["bf16"] = [run.step, str(one.model[0].weight.dtype), *seen[:2]]
        try:
            runner(of_strategy={"wrap": (nn.Conv2d,)}).fit(DataLoader(data, batch_size=3), epochs=1)
        except BadLoop as error:
            found["wrap"] = str(error)
    found["still there"] = dist.is_initialized()
    return found


@pytest.mark.parametrize("strategy", ["data", "sharded"])
def test_a_runner_trains_validates_and_predicts_on_two_ranks(launch, strategy):
    first, second = launch(many_things, strategy=strategy).results
    both = first, second

    assert first["weights"] == second["weights"]
    assert not set(first["drawn"]) & set(second["drawn"])
    for epoch in range(2):
        joint = [batch for one in both for batch in one["shuffled"][2 * epoch : 2 * epoch + 2]]
        assert sorted(chain(*joint)) == list(range(12))
    assert first["shuffled"][:2] != first["shuffled"][2:]
    assert first["in order"] == [[0, 1, 2], [6, 7, 8]]
    assert second["in order"] == [[3, 4, 5], [9, 10, 11]]
    assert sorted(chain(*first["distributed"][:2], *second["distributed"][:2])) == list(range(12))
    assert first["distributed"][:2] != first["distributed"][2:]  # set_epoch was called
    assert first["no end"] == second["no end"] == [[0, 1]] * 2
    for one in both:
        assert "different numbers of training batches: 0, 1. One rank has no batches." in one["uneven"]

    inputs = torch.arange(24.0).view(12, 2) / 24
    outputs = inputs.sum(1) + 1
    exact = [outputs[:7].square().mean(), outputs[:1].square().mean(), torch.cat([outputs[:4], outputs[:1]]).square().mean()]
    assert first["validated"] == second["validated"]
    assert [one["val_loss"] for one in first["validated"]] == pytest.approx([float(one) for one in exact])
    assert first["predicted"] == second["predicted"] == pytest.approx(outputs[:5].tolist())

    assert first["own"] == second["own"]
    assert set(first["loaded"]) == {0.5}
    assert first["momentum"] == [2.0, 2.0]
    assert first["best"] == second["best"]
    assert first["hooked"] == [[3, 2]] * 2
    if strategy == "sharded":
        assert "'0.weight' is sharded, and torch does not call hooks on its gradient" in first["parameters"]
        assert first["bf16"] == [2, *["torch.float32"] * 3]
        assert "matches no module of Sequential" in first["wrap"]
    else:
        assert first["parameters"] is None
    assert all(one["still there"] for one in both)
