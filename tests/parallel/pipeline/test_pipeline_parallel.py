"""PipelineParallel: layers on different ranks, with the numbers of a single process."""

from __future__ import annotations

import os
import pickle
import random
import signal
import threading
from contextlib import suppress

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from hookpoint import PipelineParallel, load_weights  # noqa: E402
from hookpoint.core.errors import BadLoop, CannotResume  # noqa: E402
from hookpoint.parallel.pipeline._microbatches import MicrobatchLoss  # noqa: E402
from hookpoint.parallel.pipeline._stage_split import stages_of  # noqa: E402
from hookpoint.storage.verify import verify  # noqa: E402

FULL = os.environ.get("HOOKPOINT_FAULTS") == "all"
SAME = ("step", "weights", "optimizer", "averages", "rate", "generator", "metrics", "predicted")
WHOLES = []  # results of the uninterrupted run on each rank, once a test has computed them

CASES = {
    "1F1B": {},
    "GPipe": {"schedule": "GPipe"},
    "accumulated and clipped": {"accumulate": 3, "clip": 0.3},
    "bf16": {"precision": "bf16"},
    "skipped": {"accumulate": 2, "skips": True},
    "cut elsewhere": {"by_function": True, "outputs": False},
}

SOME = {
    "GPipe, cut elsewhere": {**CASES["GPipe"], **CASES["cut elsewhere"]},
    **{name: CASES[name] for name in ("accumulated and clipped", "bf16", "skipped")},
}


def trained(cases, epochs, three=False):
    """Train a small network with each set of options; return weights, averages, metrics, steps and predictions."""
    import os

    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    from hookpoint import Callback, PipelineParallel, Runner
    from hookpoint import callbacks as cb

    torch.set_num_threads(1)

    class Skips(Callback):
        """Request each kind of skip: at some steps, or when the loss, which all ranks share, is small."""

        may_skip = True

        def __init__(self):
            super().__init__()
            self.asked = {"batch": 0, "backward": 0, "step": 0}

        def on_train_iter_begin(self, run):
            if run.iteration == 3 and not self.asked["batch"]:  # a skipped batch is not an iteration
                self.asked["batch"] += 1
                run.skip_batch()

        def on_backward_begin(self, run):
            if run.loss < 1.35:
                self.asked["backward"] += 1
                run.skip_backward()

        def on_step_begin(self, run):
            if run.step in (3, 4) and self.asked["step"] < 3:
                self.asked["step"] += 1
                run.skip_step()

    def listed(weights):
        return {name: one.flatten().tolist() for name, one in weights.items()}

    def train(schedule="1F1B", accumulate=1, clip=None, precision="32", by_function=False, outputs=True, skips=False):
        generator = torch.Generator().manual_seed(1)
        inputs, targets = torch.randn(165, 6, generator=generator), torch.randint(0, 4, (165,), generator=generator)
        targets[::7] = -100  # ignored by the criterion
        torch.manual_seed(0 if os.environ.get("RANK", "0") == "0" else 5)  # the chief's weights are trained
        model = nn.Sequential(
            nn.Linear(6, 16), nn.Tanh(), nn.Sequential(nn.Linear(16, 17), nn.Tanh(), nn.LayerNorm(17)), nn.Linear(17, 4)
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        split = (1, "2.1") if three else ("2.1",)
        if by_function:
            split = lambda model: [model[:2], model[2:]]  # noqa: E731
        average, asks = cb.SwapEMAWeights(0.9), Skips()
        gradients = cb.GradientStats("2.*", every=1, updates=True, per_parameter=True)
        runner = Runner(
            model,
            optimizer,
            nn.CrossEntropyLoss(label_smoothing=0.1),
            metrics={"right": lambda outputs, targets: (outputs.argmax(1) == targets).float().mean()} if outputs else None,
            callbacks=[average, gradients, *([asks] if skips else [])],
            extra_callbacks=[],
            monitors=[],
            accumulate=accumulate,
            clip_grad_norm=clip,
            precision=precision,
            strategy=PipelineParallel(split, schedule=schedule, outputs=outputs),
        )
        loader = DataLoader(TensorDataset(inputs, targets), batch_size=16)  # the last one has 5 samples
        run = runner.fit(loader, (inputs[:31], targets[:31]), epochs=epochs, batch_size=6)
        return {
            "weights": listed(model.state_dict()),
            "average": listed(average.weights()),
            "metrics": {name: float(value) for name, value in sorted(run.metrics.items())},
            "step": run.step,
            "asked": asks.asked,
            "places": [run.data_rank, run.model_rank],
            "predicted": torch.cat(runner.predict((inputs[:7],), batch_size=4)).flatten().tolist(),
        }

    return {name: train(**options) for name, options in cases.items()}


def is_near(one, other, limit):
    ours, theirs = torch.tensor(one, dtype=torch.float64), torch.tensor(other, dtype=torch.float64)
    return bool((ours - theirs).norm() <= limit * theirs.norm())


def flat(weights):
    return [value for name in sorted(weights) for value in weights[name]]


@pytest.mark.parametrize("ranks", [2, 3])
def test_stages_train_like_a_single_process(launch, sample, ranks):
    cases, epochs = (sample(SOME, CASES), sample(2, 5)) if ranks == 2 else ({"1F1B": {}}, sample(1, 5))
    whole = trained(cases, epochs)
    results = launch(trained, ranks=ranks, cases=cases, epochs=epochs, three=ranks == 3).results
    for case, expected in whole.items():
        limit = 2e-2 if case == "bf16" else 1e-5
        for rank, found in enumerate(results):
            one = found[case]
            assert one["places"] == [0, rank]
            assert one["step"] == expected["step"]
            assert one["asked"] == expected["asked"]
            assert all(one["asked"].values()) is ("skipped" in case)
            assert "skipped" in case or one["step"] == (4 if "accumulated" in case else 11) * epochs
            assert one["metrics"] == results[0][case]["metrics"]
            assert one["predicted"] == results[0][case]["predicted"]
            assert is_near(one["predicted"], expected["predicted"], limit)
            assert sorted(one["metrics"]) == sorted(expected["metrics"])
            assert is_near(list(one["metrics"].values()), list(expected["metrics"].values()), limit)
        for kind in ("weights", "average"):
            parts = [found[case][kind] for found in results]
            joined = {name: value for part in parts for name, value in part.items()}
            assert sum(map(len, parts)) == len(joined)  # each rank has its own layers, and together they have all
            assert is_near(flat(joined), flat(expected[kind]), limit)


def test_checkpoints_resume_bit_for_bit_and_contain_the_whole_model(launch, sample, tmp_path, scripts):
    def save_and_go_on(folder, options):
        from functools import partial

        import pipeline_subject
        from pipeline_subject import RANK

        from hookpoint import LambdaCallback
        from hookpoint.core.errors import CannotResume

        def stop(run):
            if RANK == 1 and run.step == 7:
                run.stop("rank 1 has seen enough")

        train = partial(pipeline_subject.train, **options)
        found = {"whole": train(f"{folder}/whole")}
        found["stopped"] = train(f"{folder}/run", more=(LambdaCallback(on_train_iter_end=stop),))
        for name, split in {"changed": ("2",), "nowhere": ("2.9",)}.items():
            try:
                train(f"{folder}/run", split=split, allow_world_change=True)
            except (CannotResume, ValueError) as error:
                found[name] = str(error)
        found["resumed"] = train(f"{folder}/run")
        return found

    options = sample({"epochs": 2, "every": 5}, {})
    results = launch(save_and_go_on, folder=str(tmp_path), options=options).results
    if not options:
        WHOLES.extend(result["whole"] for result in results)
    for result in results:
        assert [name for name in SAME if result["whole"][name] != result["resumed"][name]] == []
        assert (result["stopped"]["step"], result["stopped"]["stop"]) == (8, "rank 1 has seen enough")
        assert "layout" in result["changed"]
        assert "no module '2.9'" in result["nowhere"]
    assert results[0]["whole"]["weights"] != results[1]["whole"]["weights"]
    assert verify(tmp_path / "run").ok

    from pipeline_subject import network, train

    dense = network().eval()
    for averaged in (False, True):
        dense.load_state_dict(load_weights(tmp_path / "run", averaged=averaged))
        assert dense(torch.ones(2, 6)).isfinite().all()
    with pytest.raises(CannotResume, match=r"layout .*refused: each rank has different layers"):
        train(str(tmp_path / "run"), allow_world_change=True)


def test_signals_settings_and_errors_of_one_rank_affect_all_ranks(launch, tmp_path):
    def fail(folder):
        import os
        import signal
        import time

        import torch
        from pipeline_subject import RANK, data, network, train
        from torch import nn

        from hookpoint import Callback, PipelineParallel, Runner

        class Last(Callback):
            def on_train_iter_end(self, run):
                self.step, self.ended = run.step, time.monotonic()

        class Signalled(Last):
            def on_train_iter_begin(self, run):
                if RANK == 1 and run.step == 7:
                    os.kill(os.getpid(), signal.SIGTERM)

        class Faster(Last):
            def on_run_begin(self, run):
                self.rates = []

            def on_train_iter_begin(self, run):
                self.rates.append(run.hyper["learning_rate"])
                if RANK == 1 and run.step == 4:
                    run.hyper["learning_rate"] = 0.5

        found = {}
        signalled, faster = Signalled(), Faster()
        try:
            train(f"{folder}/signalled", more=(signalled,), epochs=2, every=5)
        except SystemExit as end:
            found["signalled"] = [end.code, signalled.step]
        train(f"{folder}/faster", more=(faster,), max_retries=0, epochs=2)
        found["rates"] = faster.rates

        def refused(**options):
            torch.manual_seed(0)
            model = options.pop("model", None) or network()
            split = options.pop("split", ("2",))
            parameters = options.pop("parameters", model.parameters())
            given = {"criterion": nn.CrossEntropyLoss(), "extra_callbacks": [], "monitors": [], **options}
            strategy = PipelineParallel(split, microbatches=2)
            try:
                runner = Runner(model, torch.optim.SGD(parameters, lr=0.1), strategy=strategy, **given)
                runner.fit(data(16), epochs=1, batch_size=8)
            except Exception as error:
                return f"{type(error).__name__}: {error}"

        tied = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
        tied[2].bias = nn.Parameter(torch.zeros(3))
        tied.append(nn.Linear(3, 3))
        tied[3].bias = tied[2].bias
        found["refused"] = {
            "stages": refused(split=("1", "2")),
            "tied": refused(model=tied, split=("3",)),
            "fp16": refused(precision="fp16"),
            "main": refused(main=lambda run: run.criterion(run.model(run.batch[0]), run.batch[1])),
            "sums of none": refused(criterion=nn.CrossEntropyLoss(reduction="none")),
            "shape": refused(model=nn.Sequential(nn.Linear(6, 4), nn.Linear(5, 3)), split=("1",)),
        }

        class Odd(nn.Module):
            calls = 0

            def forward(self, x):
                self.calls += x.device.type == "cpu" and type(x) is torch.Tensor and self.training
                if self.calls == 3:
                    raise ArithmeticError("stage 1 cannot go on")
                return x

        last = Last()
        found["broken"] = refused(model=nn.Sequential(nn.Linear(6, 3), Odd()), split=("1",), callbacks=[last])
        found["ended"] = [last.step, time.monotonic() - last.ended]
        return found

    first, second = launch(fail, folder=str(tmp_path)).results
    assert first["signalled"] == second["signalled"]
    assert first["signalled"] in ([143, 8], [143, 9])
    assert verify(tmp_path / "signalled").ok
    assert first["rates"] == second["rates"]
    assert max(first["rates"][:5]) < 0.1
    assert 0.4 < first["rates"][6] <= 0.5  # requested in the fifth iteration, and known to all ranks at the end of the next
    for result in (first, second):
        said = result["refused"]
        assert "3 stages, but there are 2 ranks" in said["stages"]
        assert "2.bias is in stage 0 and in stage 1" in said["tied"]
        assert "precision='fp16'" in said["fp16"]
        assert "run.forward()" in said["main"]
        assert "reduction='none'" in said["sums of none"]
        assert "[4, 4] X [5, 3]" in said["shape"]
        assert result["ended"][0] == 1
    assert second["broken"] == "ArithmeticError: stage 1 cannot go on"
    assert "OutOfStep: rank 0 waits in a pass through the pipeline; the other rank is gone" in first["broken"]


@pytest.mark.parametrize("number", range(10 if FULL else 0))
def test_a_run_with_a_killed_rank_restarts_and_ends_with_the_same_result(launch, tmp_path, number):
    pids = tmp_path / "pids"
    pids.mkdir()
    chance = random.Random(number)
    killed = []

    def kill():
        victim = pids / f"rank{(number + 1) % 2}"
        while not is_over.wait(0.005):
            if victim.exists() and victim.read_text():
                break
        if not is_over.wait(chance.uniform(0.0, 0.3)):
            with suppress(ProcessLookupError):
                os.kill(int(victim.read_text()), signal.SIGKILL)
                killed.append(number)

    whole = WHOLES or launch("pipeline_subject.py", workdir=str(tmp_path / "whole")).results
    is_over = threading.Event()
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        options = ("--max-restarts", "3", "--monitor-interval", "0.1")
        results = launch("pipeline_subject.py", torchrun=options, workdir=str(tmp_path / "run"), pids=str(pids)).results
    finally:
        is_over.set()
        killer.join()
    assert killed
    for result, expected in zip(results, whole, strict=True):
        assert [name for name in SAME if result[name] != expected[name]] == []
    assert verify(tmp_path / "run").ok


def test_a_model_can_be_cut_only_where_modules_are_called_in_order():
    model = nn.Sequential(nn.Linear(1, 2), nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4)), nn.Linear(4, 5))

    def sizes(split):
        return [
            [one.out_features for one in stage.modules() if isinstance(one, nn.Linear)] for stage in stages_of(model, split)
        ]

    assert sizes((1,)) == sizes(("1",)) == [[2], [3, 4, 5]]
    assert sizes(("1.2", 2)) == [[2, 3], [4], [5]]
    assert sizes(lambda model: [model[0], model[1:]]) == [[2], [3, 4, 5]]
    for split, said in {
        (0,): "not in the order",
        (2, 1): "in this order",
        ("1", "1.0"): "not in the order",
        ("3",): "no module '3'",
        (True,): "no module True",
    }.items():
        with pytest.raises(BadLoop, match=said):
            stages_of(model, split)
    with pytest.raises(BadLoop, match=r"no stage contains 2\.weight, 2\.bias"):
        stages_of(model, lambda model: [model[0], model[1]])
    with pytest.raises(BadLoop, match="that are not in the model"):
        stages_of(model, lambda model: [model, nn.Linear(1, 1)])
    encoder = nn.TransformerEncoderLayer(8, 2)
    with pytest.raises(BadLoop, match="inside a TransformerEncoderLayer"):
        stages_of(encoder, ("linear2",))


def test_invalid_arguments_raise_at_once():
    for options in ({"split": ()}, {"split": (1,), "microbatches": 0}, {"split": (1,), "schedule": "gpipe"}):
        with pytest.raises(BadLoop, match="PipelineParallel"):
            PipelineParallel(**options)
    again = pickle.loads(pickle.dumps(PipelineParallel("2.1", microbatches=3)))
    assert (again.split, again.microbatches, again.schedule) == (("2.1",), 3, "1F1B")


CRITERIA = {
    "mean": nn.CrossEntropyLoss(),
    "sum": nn.CrossEntropyLoss(reduction="sum"),
    "weighed": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 0.2])),
    "smooth": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 0.2]), label_smoothing=0.2, ignore_index=1),
    "likelihood": nn.NLLLoss(ignore_index=0),
    "function": nn.functional.multi_margin_loss,
}


@pytest.mark.parametrize("name", CRITERIA)
def test_the_mean_of_microbatch_losses_equals_the_loss_of_the_batch(name):
    numbers = torch.Generator().manual_seed(0)
    outputs, targets = torch.randn(12, 3, generator=numbers), torch.tensor([0, 1, 1, 0, 0, 0, 2, 1, 2, 0, 1, 2])
    loss = MicrobatchLoss(CRITERIA[name])
    loss.begin(targets, 4)
    parts = [loss(some, right) for some, right in zip(outputs.split(3), targets.split(3), strict=True)]
    torch.testing.assert_close(torch.stack(parts).mean(), CRITERIA[name](outputs, targets))
