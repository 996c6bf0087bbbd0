"""Mistakes that a Runner on multiple ranks rejects before any rank waits forever, and differences that it accepts."""

from __future__ import annotations


def test_unsupported_setups_raise_instead_of_waiting_forever(launch):
    def fit():
        import os

        import torch

        from hookpoint import Callback, DataParallel, Runner, Sharded

        rank = int(os.environ["RANK"])
        data = (torch.ones(65, 2), torch.ones(65, 1))
        mine = tuple(one[rank::2] for one in data)

        class Tied(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.blocks = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
                self.blocks[1].weight = self.blocks[0].weight
                self.end = torch.nn.Linear(2, 1)

            def forward(self, x):
                return self.end(self.blocks[1](self.blocks[0](x)))

        class Evaluate(Callback):
            ranks = "chief"

            def on_epoch_end(self, run):
                run.evaluate(data, batch_size=8)

        def outcome(model, train=data, val=None, **options):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            try:
                runner = Runner(model, optimizer, torch.nn.MSELoss(), extra_callbacks=[], monitors=[], **options)
                return runner.fit(train, val, epochs=1, batch_size=8).step
            except Exception as error:
                return type(error).__name__ + ": " + str(error)

        return {
            "class": outcome(torch.nn.Linear(2, 1), strategy=DataParallel),
            "tied": outcome(Tied(), strategy=Sharded()),
            "tied inside": outcome(Tied(), strategy=Sharded(wrap=lambda name, module: name == "end")),
            "workdir": outcome(torch.nn.Linear(2, 1), workdir="work" if rank == 0 else None),
            "train": outcome(torch.nn.Linear(2, 1), train=mine),
            "val": outcome(torch.nn.Linear(2, 1), val=mine),
            "chief": outcome(torch.nn.Linear(2, 1), callbacks=[Evaluate()], strategy=Sharded()),
        }

    first, second = launch(fit).results
    assert first.pop("chief") == (
        'BadStrategy: Evaluate evaluates on the chief only; Sharded needs all ranks.\n  set       ranks = "all"'
    )
    assert second.pop("chief").startswith("OutOfStep: rank 1 waits in the end of the epoch")
    assert first == second
    assert first["class"] == "BadStrategy: strategy=DataParallel is a class.\n  give      strategy=DataParallel()"
    assert first["tied"].startswith("BadStrategy: Sharded: blocks.0.weight and blocks.1.weight are the same parameter")
    assert first["tied inside"] == 4
    assert first["workdir"].startswith("BadLoop: rank 0 has a workdir, but rank 1 has none.")
    assert first["train"].startswith(
        "BadStrategy: the ranks have different training data: 33 samples in batches of 8, 32 samples in batches of 8."
    )
    assert first["val"].startswith("BadStrategy: the ranks have different validation data: 33 samples")


def test_ranks_may_differ_in_what_they_evaluate(launch):
    def fit():
        import os

        import torch

        from hookpoint import Callback, Runner, Sharded

        rank = int(os.environ["RANK"])
        torch.manual_seed(0)
        data = (torch.randn(30, 2), torch.randn(30, 1))
        criterion = torch.nn.MSELoss()

        def runner(**options):
            model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            return Runner(model, optimizer, criterion, extra_callbacks=[], monitors=[], **options)

        class Evaluate(Callback):
            ranks = "chief"
            found = exact = None

            def on_epoch_end(self, run):
                self.found = float(run.evaluate(data, batch_size=8)["val_loss"])
                with torch.no_grad():
                    self.exact = float(criterion(run.model(data[0]), data[1]))

        class Batches:
            def __init__(self):
                self.epochs = []

            def set_epoch(self, epoch):
                self.epochs.append(epoch)

            def __iter__(self):
                yield from ([0, 1], [2, 3])

        evaluate, batches = Evaluate(), Batches()
        runner(callbacks=[evaluate]).fit(data, epochs=1, batch_size=4)
        shared = runner(strategy=Sharded())
        whole = shared.validate([data])["val_loss"]
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data), batch_sampler=batches)
        runner().fit(loader, epochs=2)
        runner(on_nonfinite="warn").fit((data[0], data[1] * float("nan")), epochs=1, batch_size=8)
        return {
            "chief": [evaluate.found, evaluate.exact],
            "empty": [shared.validate([data] if rank == 0 else [])["val_loss"], whole],
            "trains on": shared.fit(data, epochs=1, batch_size=8).step,
            "epochs": batches.epochs,
        }

    outcome = launch(fit)
    first, second = outcome.results
    assert abs(first["chief"][0] - first["chief"][1]) < 1e-6
    assert second["chief"] == [None, None]
    assert first["empty"] == second["empty"]
    assert first["empty"][0] == first["empty"][1]
    assert first["trains on"] == second["trains on"] == 2
    assert first["epochs"] == second["epochs"] == [1, 2]
    assert outcome.printed.count("all losses in epoch 1 are NaN or infinite") == 1
