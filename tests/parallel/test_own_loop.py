"""Your own loop with DistributedDataParallel."""

from __future__ import annotations


def test_a_custom_loop_with_ddp_trains_like_a_bare_loop_and_saves_once(launch):
    def train():
        import torch
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader, TensorDataset
        from torch.utils.data.distributed import DistributedSampler

        from hookpoint import Loop
        from hookpoint.callbacks import EarlyStopping, InferenceRunner, ModelSaver, ScalarStats
        from hookpoint.monitors.json_writer import JSONWriter

        torch.distributed.init_process_group("gloo")
        numbers = torch.Generator().manual_seed(0)
        inputs, targets = torch.randn(64, 4, generator=numbers), torch.randn(64, 1, generator=numbers)
        data = TensorDataset(inputs, targets)
        workdir = Path(os.environ["RESULTS"]) / "run"  # noqa: F821

        def parts():
            torch.manual_seed(1)
            model = DistributedDataParallel(torch.nn.Linear(4, 1))
            return model, torch.optim.SGD(model.parameters(), lr=0.1)

        def step(model, optimizer, batch):
            loss = torch.nn.functional.mse_loss(model(batch[0]), batch[1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        sampler = DistributedSampler(data, seed=2)
        loader = DataLoader(data, batch_size=4, sampler=sampler)
        bare, optimizer = parts()
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for batch in loader:
                step(bare, optimizer, batch)

        ours, optimizer = parts()
        measure = InferenceRunner(
            [(inputs, targets)],
            ScalarStats("loss", prefix="val"),
            forward=lambda run: {"loss": (ours.module(run.batch[0]) ** 2)},
        )
        callbacks = [measure, EarlyStopping("val_loss", patience=5), ModelSaver(), JSONWriter()]
        with Loop(
            callbacks, model=ours, optimizer=optimizer, workdir=workdir, extra_callbacks=[], monitors=[], log_every=4
        ) as run:
            for epoch in run.epochs(2):
                sampler.set_epoch(epoch - 1)
                for batch in run.batches(loader):
                    run.log(loss=step(ours, optimizer, batch))
        same = all(torch.equal(one, other) for one, other in zip(bare.parameters(), ours.parameters(), strict=True))
        saved = sorted(path.name for path in (workdir / "checkpoints").iterdir() if path.name.startswith("step"))
        lines = (workdir / "scalars.jsonl").read_text().count('"loss"') if run.is_chief else None
        return [same, run.step, saved, lines, dict(run.metrics)]

    first, second = launch(train).results
    assert first[:3] == second[:3] == [True, 16, ["step-00000008", "step-00000016"]]
    assert first[3] == 6  # log steps 4, 8, 12 and 16, and two epochs: written by one rank only
    assert first[4] == second[4]


def test_only_the_chief_prints(launch):
    def prints():
        import torch  # noqa: F401

        from hookpoint import Loop

        with Loop() as run:
            for _ in run.epochs(2):
                for _ in run.batches([1.0, 2.0]):
                    run.log(loss=1.0)
        return run.rank

    outcome = launch(prints)
    assert outcome.printed.count("epoch 1") == 1, outcome.printed


def test_a_time_schedule_fires_at_the_same_step_on_all_ranks(launch):
    def timed():
        import time

        import torch  # noqa: F401

        from hookpoint import Every, LambdaCallback, Loop

        steps = []
        note = LambdaCallback(on_trigger=lambda run: steps.append([run.iteration, run.reduce(run.iteration, "max")]))
        with Loop([note.when(Every(seconds=0.05))], extra_callbacks=[], monitors=[]) as run:
            time.sleep(0.1 * run.rank)  # one rank is late
            for _ in run.epochs(1):
                for _ in run.batches(range(100)):
                    time.sleep(0.003)
        return [steps, run.elapsed]

    first, second = launch(timed).results
    assert first == second
    assert len(first[0]) >= 3
    assert all(mine == largest for mine, largest in first[0])


def test_a_save_requested_on_one_rank_or_by_a_signal_runs_on_all_ranks(launch):
    def save():
        import os
        import signal

        import torch

        from hookpoint import Callback, Loop

        class Ask(Callback):
            def __init__(self):
                self.saved = []

            def on_iter_end(self, run):
                if run.rank == 1 and run.iteration == 3:
                    run.save("mine")
                if run.rank == 1 and run.iteration == 7:
                    os.kill(os.getpid(), signal.SIGUSR1)

            def on_save(self, run, tags):
                self.saved.append([run.step, sorted(tags)])

        ask, model = Ask(), torch.nn.Linear(1, 1)
        with Loop([ask], model=model, workdir=Path(os.environ["RESULTS"]) / "run", extra_callbacks=[], monitors=[]) as run:  # noqa: F821
            for _ in run.epochs(1):
                for _ in run.batches(range(12)):
                    pass
        return ask.saved

    assert launch(save).results == [[[4, ["mine"]], [8, ["manual"]]]] * 2


def test_a_signal_to_one_rank_saves_the_step_at_which_all_stop(launch):
    def signalled():
        import os
        import signal

        import torch

        from hookpoint import Callback, Loop
        from hookpoint.callbacks import ModelSaver

        class Kill(Callback):
            def on_iter_end(self, run):
                if run.rank == 1 and run.iteration == 5:
                    os.kill(os.getpid(), signal.SIGTERM)

        model, workdir, seen = torch.nn.Linear(1, 1), Path(os.environ["RESULTS"]) / "run", []  # noqa: F821
        for callbacks in ([Kill()], []):
            try:
                with Loop([*callbacks, ModelSaver()], model=model, workdir=workdir, extra_callbacks=[], monitors=[]) as run:
                    for _ in run.epochs(1):
                        seen.extend(run.batches(range(20)))
            except SystemExit as end:
                seen.append(end.code)
        return [seen, run.iteration]

    assert launch(signalled).results == [[[*range(6), 143, *range(6, 20)], 20]] * 2
