"""Missing metrics on multiple ranks: all ranks decide the same."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("reader_ranks", "writer_ranks", "metric", "result"),
    [
        ("all", "chief", "own", ["", 4]),
        ("all", "all", "own", ["", 4]),
        ("chief", "chief", "own", ["", 4]),
        ("all", "chief", "other", ["MissingMetric", 3]),
        ("chief", "chief", "other", ["MissingMetric", 3]),
    ],
)
def test_all_ranks_agree_whether_a_metric_is_missing(launch, reader_ranks, writer_ranks, metric, result):
    def train(reader_ranks, writer_ranks, metric):
        from hookpoint import Callback, Every, Loop

        class Reads(Callback):
            reads = (metric,)

            def on_trigger(self): ...

        class Writes(Callback):
            def on_trigger(self, run):
                run.log(own=1.0)

        callbacks = [Reads(ranks=reader_ranks), Writes(ranks=writer_ranks).when(Every(epochs=3))]
        with Loop(callbacks, extra_callbacks=[], monitors=[]) as run:
            try:
                for _ in run.epochs(4):
                    for _ in run.batches(range(2)):
                        run.log(loss=1.0)
            except KeyError as error:
                return [type(error).__name__, run.epoch]
        return ["", run.epoch]

    outcome = launch(train, reader_ranks=reader_ranks, writer_ranks=writer_ranks, metric=metric)
    assert outcome.results == [result, result], outcome.printed


def test_fit_raises_for_an_unknown_metric_on_all_ranks(launch):
    def train():
        import torch

        from hookpoint import Runner
        from hookpoint.callbacks import SendStat

        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        runner = Runner(model, optimizer, torch.nn.MSELoss(), callbacks=[SendStat(["true"], "los")], extra_callbacks=[])
        try:
            runner.fit((torch.zeros(8, 2), torch.zeros(8, 1)), epochs=2, batch_size=2)
        except ValueError as error:
            return str(error).partition("\n")[0]

    outcome = launch(train)
    assert outcome.results == ["SendStat(los) reads 'los', which nothing logs. Did you mean 'loss'?"] * 2, outcome.printed
