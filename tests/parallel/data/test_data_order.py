"""Each rank sees its slices of the order of a single process with the global batch size."""

from __future__ import annotations

from itertools import chain

import pytest

pytest.importorskip("torch")


def orders(folder=""):
    """Return the samples of each step, by kind of loader, in a single process or on one of multiple ranks."""
    import os
    import random

    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from hookpoint import LambdaCallback, Runner, SeededSamples
    from hookpoint import callbacks as cb

    many = 2 // int(os.environ.get("WORLD_SIZE", "1"))  # batches of 6 for one process, of 3 for each of two
    torch.set_num_threads(1)
    # If persistent workers are garbage collected, torch does not notify them: it waits this long before it terminates each one.
    torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 0.2
    inputs = torch.arange(40.0).view(20, 2)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    found = {}

    class Augmented(torch.utils.data.Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, index):
            return inputs[index] + torch.rand(2) / 4, inputs[index, :1]

    def see(name, loader, val=None, epochs=2, seed=5, stop=None, **options):
        seen = []
        look = LambdaCallback(on_train_iter_begin=lambda run: seen.append((run.batch[0][:, 0] // 2).int().tolist()))
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
        savers = [cb.ModelSaver()] if "workdir" in options else []
        one = Runner(
            model,
            optimizer,
            torch.nn.functional.mse_loss,
            callbacks=[look, *savers],
            extra_callbacks=[],
            monitors=[],
            seed=seed,
            **options,
        )
        one.fit(loader, val, epochs=epochs, max_steps=stop)
        found[name] = found.get(name, []) + seen

    size = 3 * many
    see("seeded", DataLoader(data, batch_size=size, shuffle=True))
    see("another seed", DataLoader(data, batch_size=size, shuffle=True), seed=6)
    random.seed(3)
    torch.manual_seed(3)
    see("seeded by the script", DataLoader(data, batch_size=size, shuffle=True), seed=None)
    see("drop_last", DataLoader(data, batch_size=size, shuffle=True, drop_last=True))
    generator = torch.Generator().manual_seed(8)
    see("generator", DataLoader(data, batch_size=size, shuffle=True, generator=generator))
    val = DataLoader(data, batch_size=size, shuffle=True)
    see("shuffled validation", DataLoader(data, batch_size=size, shuffle=True), val)
    see("workers", DataLoader(data, batch_size=size, shuffle=True, num_workers=1))
    loader = DataLoader(data, batch_size=size, shuffle=True, num_workers=1, persistent_workers=True)
    see("workers that stay", loader)
    see("samples with seeds", DataLoader(SeededSamples(Augmented()), batch_size=size, shuffle=True))
    if folder:
        generator = torch.Generator().manual_seed(8)
        for stop in (2, 5, None):  # each start runs the whole script
            generator.manual_seed(8)
            loader = DataLoader(data, batch_size=size, shuffle=True, generator=generator)
            see("generator, resumed", loader, stop=stop, workdir=f"{folder}/generator")
            see("seeded, resumed", DataLoader(data, batch_size=size, shuffle=True), stop=stop, workdir=f"{folder}/seeded")
    return found


def test_two_ranks_see_slices_of_the_order_of_one_process(launch, tmp_path):
    results = launch(orders, folder=str(tmp_path)).results
    alone = launch(orders, ranks=1).results[0]
    joint = {
        name: [first + second for first, second in zip(results[0][name], results[1][name], strict=True)] for name in results[0]
    }
    assert alone["seeded"] != alone["another seed"]
    alone["generator, resumed"], alone["seeded, resumed"] = alone["generator"], alone["seeded"]
    for name, steps in alone.items():
        assert joint[name] == steps, name
    assert all(len(step) == 3 for one in results for step in one["drop_last"])


def test_the_chief_may_iterate_over_its_training_data_alone(launch):
    def look():
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        from hookpoint import Callback, Runner

        class Look(Callback):
            ranks = "chief"

            def on_train_epoch_begin(self, run):
                next(iter(run.train_loader))

            def on_epoch_end(self, run):
                self.looked = [batch[0][:, 0].int().tolist() for batch in run.train_loader]

        class Seen(Callback):
            def on_run_begin(self, run):
                self.seen = []

            def on_train_iter_begin(self, run):
                self.seen.append(run.batch[0][:, 0].int().tolist())

        inputs = torch.arange(12.0).view(12, 1)
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
        one, seen = Look(), Seen()
        options = {"extra_callbacks": [], "monitors": [], "seed": 1}
        runner = Runner(model, optimizer, torch.nn.functional.mse_loss, callbacks=[one, seen], **options)
        runner.fit(DataLoader(TensorDataset(inputs, inputs), batch_size=3, shuffle=True), epochs=2)
        return [seen.seen, getattr(one, "looked", None)]

    (seen, looked), (others, nothing) = launch(look).results
    assert looked == seen[2:]  # the order of the epoch, which is drawn once
    assert nothing is None
    assert sorted(chain(*seen[2:], *others[2:])) == list(range(12))


def test_two_ranks_resume_with_a_different_batch_size(launch, tmp_path):
    def train(folder):
        import logging

        import torch
        import torch.distributed as dist
        from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

        from hookpoint import LambdaCallback, Loop, Runner
        from hookpoint import callbacks as cb
        from hookpoint.core.errors import CannotResume

        dist.init_process_group("gloo")
        inputs = torch.arange(56.0).view(56, 1)
        data, lines = TensorDataset(inputs, inputs), []
        handler = logging.Handler()
        handler.emit = lambda record: lines.append(record.getMessage())
        logging.getLogger("hookpoint").addHandler(handler)

        def of(run, batch):
            return [run.batch_idx, *batch[0].int().flatten().tolist()]

        def fit(name, loader, stop=None):
            seen = []
            torch.manual_seed(0)
            model = torch.nn.Linear(1, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
            look = LambdaCallback(
                on_train_iter_begin=lambda run: seen.append([run.batch_idx, *run.batch[0].int().flatten().tolist()])
            )
            options = {"extra_callbacks": [], "monitors": [], "seed": 3, "workdir": f"{folder}/{name}"}
            runner = Runner(model, optimizer, torch.nn.functional.mse_loss, callbacks=[look, cb.ModelSaver()], **options)
            runner.fit(loader, epochs=1, max_steps=stop)
            return seen

        def loop(size, stop=None):
            seen = []
            sampler = DistributedSampler(data, seed=1)
            loader = DataLoader(data, batch_size=size, sampler=sampler)
            options = {"extra_callbacks": [], "monitors": [], "workdir": f"{folder}/loop"}
            with Loop([cb.ModelSaver()], **options) as run:
                for _ in run.epochs(1):
                    for batch in run.batches(loader):
                        seen.append(of(run, batch))
                        if len(seen) == stop:
                            run.stop(alike=True)
            return seen

        def shuffled(size):
            return DataLoader(data, batch_size=size, shuffle=True)

        found = {"shared": [fit("shared", shuffled(4), 3), fit("shared", shuffled(8), 4), fit("shared", shuffled(8))]}
        found["distributed"] = [loop(4, 3), loop(8)]
        fit("other", shuffled(4), 3)
        try:
            fit("other", DataLoader(data, batch_size=4))
        except CannotResume as error:
            found["refused"] = str(error)
        return [found, lines]

    (first, lines), (second, silent) = launch(train, folder=str(tmp_path)).results
    for name in ("shared", "distributed"):
        both = [*chain(*first[name]), *chain(*second[name])]
        assert sorted(chain(*(samples for _, *samples in both))) == list(range(56)), name
        assert [number for number, *_ in chain(*first[name])] == [number for number, *_ in chain(*second[name])], name
    assert [number for number, *_ in chain(*first["shared"])] == [0, 1, 2, 2, 3]  # 24 samples fill 2 of 16, rounded up
    assert [len(samples) for _, *samples in first["shared"][1] + first["shared"][2]] == [8, 8]
    assert sum("the batch size is 8, but was 4" in line for line in lines) == 2
    assert not [line for line in silent if "batch size" in line]
    assert "shuffled  in order  refused: " in first["refused"]
    assert first["refused"] == second["refused"]
