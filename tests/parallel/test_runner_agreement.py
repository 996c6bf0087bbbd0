"""Verdicts and settings in a Runner on multiple ranks."""

from __future__ import annotations


def test_skips_stops_and_schedules_are_the_same_on_all_ranks(launch):
    def fit():
        import torch

        from hookpoint import Callback, Runner
        from hookpoint.callbacks import ScheduledHyperParamSetter

        class Skip(Callback):
            may_skip = True

            def __init__(self):
                self.skipped, self.rates, self.weights = [], [], []

            def on_iter_begin(self, run):
                if run.mode == "train":
                    self.rates.append(run.optimizer.param_groups[0]["lr"])
                    self.weights.append(float(run.model.weight.sum()))
                    if run.rank == 1 and run.batch_idx == 1 and run.epoch == 1:
                        run.skip_batch()

            def on_backward_end(self, run):
                if run.rank == 0 and run.batch_idx == 2 and run.epoch == 1:
                    run.skip_step()

            def on_iter_skip(self, run):
                self.skipped.append(run.batch_idx)

        torch.manual_seed(0)
        data = (torch.randn(32, 3), torch.randn(32, 1))
        model = torch.nn.Linear(3, 1)
        skip = Skip()
        setter = ScheduledHyperParamSetter("lr", [(0, 0.1), (4, 0.2), (8, 0.05)], step_based=True)
        runner = Runner(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            torch.nn.functional.mse_loss,
            callbacks=[skip, setter],
            extra_callbacks=[],
            monitors=[],
            seed=3,
        )
        run = runner.fit(data, data, epochs=9, max_steps=11, batch_size=4)
        return [skip.skipped, skip.rates, skip.weights, run.step, run.stop_reason, dict(run.metrics)]

    first, second = launch(fit).results
    assert first == second
    skipped, rates, weights, step, reason, _ = first
    assert skipped == [1]
    assert step == 11
    assert reason == "max_steps=11 is reached"
    assert weights[1] == weights[2] == weights[3]  # neither the batch nor the step
    assert weights[0] != weights[1]
    assert rates[:6] == [0.1] * 6
    assert rates[6:10] == [0.2] * 4
    assert set(rates[10:]) == {0.05}
