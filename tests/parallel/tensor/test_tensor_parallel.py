"""TensorParallel computes the same numbers as a single process."""

from __future__ import annotations

import os
import random
import signal
import threading
from contextlib import suppress

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from hookpoint.storage.load_weights import load_weights  # noqa: E402
from hookpoint.storage.run_file import read_run_file  # noqa: E402
from hookpoint.storage.verify import verify  # noqa: E402

FULL = os.environ.get("HOOKPOINT_FAULTS") == "all"
RANKS = {"tensor": 2, "data-tensor": 4}
SAME = ("step", "weights", "optimizer", "rate", "generators", "seen", "metrics", "scalars")


OPTIONS = [{}, {"accumulate": 3, "clip_grad_norm": 0.3}]


def trained(size, options, epochs):
    """Train a small network with each set of options; return weights, averages, metrics, outputs and steps."""
    import os

    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    from hookpoint import Runner, TensorParallel
    from hookpoint import callbacks as cb

    torch.set_num_threads(1)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    joint = 16 * size // world if world > 1 else 16
    found = []
    for option in options:
        numbers = torch.Generator().manual_seed(1)
        inputs, targets = torch.randn(160, 6, generator=numbers), torch.randn(160, 3, generator=numbers)
        torch.manual_seed(int(os.environ.get("RANK", "0")))  # every rank gets the chief's weights
        inner = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 16))
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), inner, nn.LayerNorm(16), nn.Linear(16, 3))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        average, stats = cb.SwapEMAWeights(0.9), cb.GradientStats(every=1, updates=True, per_parameter=True)
        runner = Runner(
            model,
            optimizer,
            nn.functional.mse_loss,
            callbacks=[average, stats],
            extra_callbacks=[],
            monitors=[],
            strategy=TensorParallel({"2.0": "colwise", "2.2": "rowwise", "4": "rowwise"}, size=size),
            **option,
        )
        loader = DataLoader(TensorDataset(inputs, targets), batch_size=joint)
        run = runner.fit(loader, (inputs[:31], targets[:31]), epochs=epochs, batch_size=5)
        weights = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in model.parameters()]
        outputs = torch.cat(runner.predict((inputs[:5],), batch_size=2))
        found.append(
            {
                "weights": torch.cat([one.detach().flatten() for one in weights]).tolist(),
                "average": torch.cat([one.flatten() for one in average.weights().values()]).tolist(),
                "metrics": [float(run.metrics[name]) for name in sorted(run.metrics)],
                "outputs": outputs.flatten().tolist(),
                "step": run.step,
                "split": sum(hasattr(one, "full_tensor") for one in model.parameters()),
                "plain": type(outputs) is torch.Tensor,
            }
        )
    return found


def is_near(one, other):
    ours, theirs = torch.tensor(one, dtype=torch.float64), torch.tensor(other, dtype=torch.float64)
    return bool((ours - theirs).norm() <= 1e-5 * theirs.norm())


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_ranks_train_like_a_single_process(launch, sample, ranks):
    options, epochs = sample(OPTIONS[1:], OPTIONS), sample(2, 5)
    alone = trained(2, options, epochs)
    first, *others = launch(trained, ranks=ranks, size=2, options=options, epochs=epochs).results
    assert all(other == first for other in others)
    for option, one, many in zip(options, alone, first, strict=True):
        assert one["step"] == many["step"] == (4 if option else 10) * epochs
        assert (one["split"], many["split"]) == (0, 6)
        assert many["plain"]
        for name in ("weights", "average", "metrics", "outputs"):
            assert is_near(many[name], one[name]), name


def many_things():
    """Train and call models of many kinds, on two ranks and, as copies, in a single process; return the differences."""
    import copy
    import os

    import torch
    from torch import nn
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    from hookpoint import LambdaCallback, MainCallback, Runner, TensorParallel
    from hookpoint import callbacks as cb
    from hookpoint.core.errors import BadLoop

    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    found = {}

    def full(tensor):
        return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor

    def runner(model, plan=None, *callbacks, optimizer=None, **options):
        optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        options = {"extra_callbacks": [], "monitors": [], "callbacks": callbacks, **options}
        return Runner(model, optimizer, nn.functional.mse_loss, strategy=TensorParallel(plan), **options)

    def distance(model, plan, inputs, targets, epochs=2):
        """Return how far a split model ends from one trained by a bare loop, and the names of its shards."""
        alone = copy.deepcopy(model)
        steps = torch.optim.SGD(alone.parameters(), lr=0.05, momentum=0.9)
        one = runner(model, plan)
        one.fit(DataLoader(TensorDataset(inputs, targets), batch_size=4), epochs=epochs)
        for _ in range(epochs):
            for begin in range(0, len(inputs), 4):
                steps.zero_grad()
                nn.functional.mse_loss(alone(inputs[begin : begin + 4]), targets[begin : begin + 4]).backward()
                steps.step()
        ours, theirs = (torch.cat([full(p).detach().flatten() for p in m.parameters()]) for m in (model, alone))
        outputs = torch.cat(one.predict((inputs,), batch_size=4)), alone.eval()(inputs)
        split = sorted(name for name, p in model.named_parameters() if hasattr(p, "full_tensor"))
        apart = max(float((ours - theirs).norm() / theirs.norm()), float((outputs[0] - outputs[1]).norm() / outputs[1].norm()))
        return [apart, split, type(outputs[0]) is torch.Tensor]

    class Net(nn.Module):
        """A small language model with the usual names: attention that counts heads, a gated pair, tied embeddings."""

        def __init__(self, tied):
            super().__init__()
            self.embed_tokens = nn.Embedding(11, 8)
            self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(8, 8, bias=False) for _ in range(4))
            self.norm, self.num_heads = nn.LayerNorm(8), 4
            self.mlp = nn.ModuleDict(
                {"gate_proj": nn.Linear(8, 12), "up_proj": nn.Linear(8, 12), "down_proj": nn.Linear(12, 8)}
            )
            self.lm_head = nn.Linear(8, 11, bias=False)
            if tied:
                self.lm_head.weight = self.embed_tokens.weight

        def forward(self, ids):
            x = self.embed_tokens(ids)
            q, k, v = (
                one(x).view(*x.shape[:2], self.num_heads, -1).transpose(1, 2) for one in (self.q_proj, self.k_proj, self.v_proj)
            )
            x = self.norm(x + self.o_proj(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)))
            x = x + self.mlp["down_proj"](nn.functional.silu(self.mlp["gate_proj"](x)) * self.mlp["up_proj"](x))
            return self.lm_head(x)

    class Norms(nn.Module):
        """Sequence parallel: between the layers each rank has part of the sequence, and the output is a DTensor."""

        def __init__(self):
            super().__init__()
            self.norm, self.fc1, self.fc2 = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x):
            return self.fc2(self.fc1(self.norm(x)).tanh())

    torch.manual_seed(3)
    ids, logits = torch.randint(0, 11, (8, 4)), torch.randn(8, 4, 11)
    found["language"] = distance(Net(tied=False), None, ids, logits)
    found["tied"] = distance(Net(tied=True), None, ids, logits)
    inputs, targets = torch.randn(8, 4, 8), torch.randn(8, 4, 8)
    sequence = {
        "": PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),)),
        "norm": SequenceParallel(),
        "fc1": ColwiseParallel(input_layouts=Shard(1)),
        "fc2": RowwiseParallel(use_local_output=False),
    }
    found["sequence"] = distance(Norms(), sequence, inputs, targets)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    found["encoder"] = distance(nn.TransformerEncoder(layer, 2), None, inputs, targets)
    found["uneven"] = distance(
        nn.Sequential(nn.Linear(8, 13), nn.Tanh(), nn.Linear(13, 8)), {"0": "colwise", "2": "rowwise"}, inputs, targets
    )

    # A custom forward and step, multiple models, an unfrozen layer, an unused one
    class Own(MainCallback):
        def on_train_forward(self, run):
            run.outputs = run.model["b"](run.model["a"](run.batch[0]))
            run.loss = run.outputs.square().mean()

        def on_iter_backward(self, run):
            for optimizer in run.optimizer.values():
                optimizer.zero_grad()
            run.loss.backward()
            for optimizer in run.optimizer.values():
                optimizer.step()

    def pair():
        return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 8), nn.Dropout(0.3))

    several = {"a": pair(), "b": pair()}
    several["b"][3].add_module("unused", nn.Linear(3, 3))
    several["a"][0].weight.requires_grad_(False)
    drawn, kinds = [], set()

    def look(run):
        drawn.append(float(run.outputs.detach().sum()))
        kinds.update(type(one).__name__ for one in (run.outputs, run.loss))

    frozen = several["a"][0].weight.clone()
    both = {name: torch.optim.SGD(one.parameters(), lr=0.05, weight_decay=0.1) for name, one in several.items()}
    unused = several["b"][3].unused.weight.clone()
    one = runner(
        several, {"*.0": "colwise", "*.2": "rowwise"}, LambdaCallback(on_train_iter_end=look), optimizer=both, main=Own()
    )
    one.fit(DataLoader(TensorDataset(inputs), batch_size=4), epochs=2)
    found["frozen"] = torch.equal(full(several["a"][0].weight), frozen)
    several["a"][0].weight.requires_grad_(True)
    one.fit(DataLoader(TensorDataset(inputs), batch_size=4), epochs=1)
    found["thawed"] = not torch.equal(full(several["a"][0].weight), frozen)
    found["unused"] = torch.equal(several["b"][3].unused.weight, unused) and several["b"][3].unused.weight.grad is None
    found["several"] = [torch.cat([full(p).detach().flatten() for m in several.values() for p in m.parameters()]).tolist()]
    found["drawn"], found["kinds"] = drawn, sorted(kinds)

    # Full and sharded states can be loaded
    model = pair()
    hooked = []
    hooks = cb.ModuleHooks("0", forward=lambda module, args, output: hooked.append(list(output.shape)))
    keep = cb.EarlyStopping("val_loss", patience=1, restore_best_weights=True)
    one = runner(model, {"0": "colwise", "2": "rowwise"}, hooks, keep, cb.CheckNumerics())
    data = DataLoader(TensorDataset(inputs, targets), batch_size=4)
    found["best"] = one.fit(data, data, epochs=2).metrics["val_loss"]
    found["hooked"] = hooked[0]
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict({name: full(value) * 0 + 0.5 for name, value in kept.items()})
    found["whole"] = [float(full(p).mean()) for p in model.parameters()]
    model.load_state_dict(kept)
    found["parts"] = all(torch.equal(full(value), full(model.state_dict()[name])) for name, value in kept.items())
    state = one.optimizer.state_dict()
    one.optimizer.load_state_dict(state)
    state["state"] = {key: {"momentum_buffer": full(v["momentum_buffer"]) * 0 + 2.0} for key, v in state["state"].items()}
    one.optimizer.load_state_dict(state)
    found["momentum"] = [float(full(v["momentum_buffer"]).mean()) for v in one.optimizer.state.values()]

    # Errors are raised early
    def refused(name, *given, data=data, **options):
        try:
            runner(*given, **options).fit(data, epochs=1)
        except BadLoop as error:
            found[name] = str(error)

    refused("apart", nn.Sequential(nn.Linear(8, 8)), {"0": ColwiseParallel()})
    sampler = DistributedSampler(data.dataset)
    refused("mixed", pair(), {"0": "colwise", "2": "rowwise"}, data=DataLoader(data.dataset, batch_size=4, sampler=sampler))
    model = nn.Sequential(pair(), nn.LayerNorm(8))
    fused = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    refused("fused", model, {"0.0": "colwise", "0.2": "rowwise"}, optimizer=fused)
    refused("nothing", nn.Sequential(nn.Linear(8, 8)), {"fc1": "colwise"})
    for name, options in (("fp16", {"precision": "fp16"}), ("world", {"allow_world_change": True, "workdir": "unused"})):
        refused(name, pair(), {"0": "colwise", "2": "rowwise"}, **options)
    try:
        three = Runner(pair(), None, strategy=TensorParallel({"0": "colwise"}, size=3), extra_callbacks=[], monitors=[])
        three.predict((inputs,), batch_size=4)
    except BadLoop as error:
        found["three"] = str(error)
    found["rank"] = rank
    return found


def test_many_kinds_of_models_train_on_two_ranks(launch):
    first, second = launch(many_things).results
    assert (first.pop("rank"), second.pop("rank")) == (0, 1)
    assert first == second
    for kind in ("language", "tied", "sequence", "encoder", "uneven"):
        apart, split, is_plain = first[kind]
        assert apart < 1e-5, (kind, apart)
        assert is_plain, kind
        assert split, kind
    assert first["tied"][1] == [name for name in first["language"][1] if name != "lm_head.weight"]
    assert "embed_tokens.weight" in first["tied"][1]
    assert first["encoder"][1] == [f"layers.{n}.linear{m}.{w}" for n in (0, 1) for m in (1, 2) for w in ("bias", "weight")]
    assert first["frozen"]
    assert first["thawed"]
    assert first["unused"]
    assert first["kinds"] == ["Tensor"]
    assert len(set(first["drawn"])) == len(first["drawn"])
    assert first["hooked"] == [4, 4, 3]  # of the six features, those on this rank
    assert set(first["whole"]) == {0.5}
    assert first["parts"]
    assert first["momentum"] == [2.0] * 4
    assert "have different outputs: the plan leaves them sharded" in first["apart"]
    assert "have different inputs" in first["mixed"]
    assert "SGD(foreach=True)" in first["fused"]
    assert "'fc1' in the plan matches no module" in first["nothing"]
    assert "TensorParallel does not support precision='fp16'" in first["fp16"]
    assert "resumes only with the same number of ranks" in first["world"]
    assert "the number of ranks, 2, is not a multiple of size=3" in first["three"]


def exact(folder, kind, options):
    import os
    import signal
    from contextlib import suppress
    from functools import partial

    import subject
    from subject import RANK, Cut, Ledger

    from hookpoint import Callback
    from hookpoint.core.errors import CannotResume

    class Asks(Callback):
        """Stop the run, or send a signal, on one rank only."""

        def __init__(self, step, sends):
            super().__init__()
            self.at, self.sends = step, sends

        def on_train_iter_begin(self, run):
            if RANK == 1 and run.step == self.at:
                os.kill(os.getpid(), signal.SIGTERM) if self.sends else run.stop("one has had enough")

    train = partial(subject.train, **options)
    found = {"whole": train(kind, f"{folder}/whole"), "ends": []}
    ledger = Ledger()
    stopped = train(kind, f"{folder}/run", more=(Asks(2, False),), ledger=ledger)
    found["ends"].append([stopped["stop"], ledger.steps[-1]])
    ledger = Ledger()
    try:
        train(kind, f"{folder}/run", more=(Asks(7, True),), ledger=ledger)
    except SystemExit as end:
        found["ends"].append([end.code, ledger.steps[-1]])
    with suppress(Cut):
        train(kind, f"{folder}/run", ledger=Ledger(fail_at=10))
    found["resumed"] = train(kind, f"{folder}/run")
    other = "tensor" if kind == "data-tensor" else "data"
    try:
        train(other, f"{folder}/run")
    except CannotResume as error:
        found["other"] = str(error)
    return found


@pytest.fixture(scope="module")
def ended():
    return {}


@pytest.fixture
def options(sample):
    """Return how long the runs below are, and how often they are saved."""
    return sample({"epochs": 2, "every": 4}, {"epochs": 3, "every": 2})


@pytest.fixture
def ends(launch, tmp_path, ended, options):
    """Return a function that returns the results of `exact` on each rank, and its folder; it runs once per kind."""

    def go(kind):
        if kind not in ended:
            results = launch(exact, ranks=RANKS[kind], folder=str(tmp_path), kind=kind, options=options).results
            ended[kind] = results, tmp_path
        return ended[kind]

    return go


@pytest.mark.parametrize("kind", ["tensor", *(["data-tensor"] if FULL else [])])
def test_a_run_stops_on_all_ranks_at_once_and_resumes_bit_for_bit(ends, kind):
    (results, folder), ranks = ends(kind), RANKS[kind]
    for rank, result in enumerate(results):
        whole, resumed = result["whole"], result["resumed"]
        assert [name for name in SAME if whole[name] != resumed[name]] == [], rank
        assert result["ends"] == results[0]["ends"]
        assert whole["generators"] == results[rank - rank % 2]["whole"]["generators"]  # the same samples, the same numbers
        assert [whole[name] for name in ("weights", "metrics")] == [
            results[0]["whole"][name] for name in ("weights", "metrics")
        ]
    assert (results[0]["whole"]["seen"] == results[-1]["whole"]["seen"]) is (ranks == 2)
    (reason, at), (code, then) = results[0]["ends"]
    assert reason.startswith("one has had enough")
    assert at in (3, 4)
    assert code == 143
    assert then in (8, 9)
    if ranks == 4:
        assert "model size" in results[0]["other"]
    folder = folder / "run"
    assert verify(folder).ok
    facts = read_run_file(folder)
    assert (facts["identity"]["world_size"], facts["identity"]["model_size"]) == (ranks, 2)
    dense = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, 3))
    dense.load_state_dict(load_weights(folder))


@pytest.mark.parametrize("number", range(10 if FULL else 0))
def test_a_run_with_a_killed_rank_restarts_and_ends_with_the_same_result(launch, tmp_path, number, ends, options):
    kind = "data-tensor" if number % 4 == 3 else "tensor"
    (expected, _), ranks = ends(kind), RANKS[kind]
    pids, workdir = tmp_path / "pids", tmp_path / "run"
    pids.mkdir()
    chance, is_over, killed = random.Random(number), threading.Event(), []

    def kill():
        victim = pids / f"rank{chance.randrange(ranks)}"
        while not (victim.exists() and victim.read_text()) and not is_over.wait(0.005):
            pass
        if not is_over.wait(chance.uniform(0.05, 0.3)):
            with suppress(ProcessLookupError):
                os.kill(int(victim.read_text()), signal.SIGKILL)
                killed.append(victim)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        torchrun = ("--max-restarts", "5", "--monitor-interval", "0.1")
        given = {"kind": kind, "workdir": str(workdir), "pids": str(pids), **options}
        results = launch("subject.py", ranks=ranks, torchrun=torchrun, **given).results
    finally:
        is_over.set()
        killer.join()
    assert killed
    for rank, result in enumerate(results):
        assert [name for name in SAME if result[name] != expected[rank]["whole"][name]] == [], rank
    assert verify(workdir).ok


def test_an_error_on_one_rank_is_reported_and_ends_all_ranks(launch, tmp_path):
    def fail(folder):
        from subject import RANK, train

        from hookpoint import Callback

        class Fails(Callback):
            def on_train_iter_begin(self, run):
                if RANK == 1 and run.step == 5:
                    raise KeyError("a picture is missing")

        train("tensor", f"{folder}/run", more=(Fails(),), every=4)

    outcome = launch(fail, check=False, folder=str(tmp_path))
    assert outcome.status
    assert outcome.results == [None, None]
    assert "a picture is missing" in outcome.printed
    assert "Fails" in outcome.printed
    # The other rank reports what it waits for, unless it was terminated before.
    assert "rank 0 waits in" in outcome.printed or "[rank0]" not in outcome.printed
