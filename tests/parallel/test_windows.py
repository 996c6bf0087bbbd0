"""Callbacks with a step schedule read the same values on all ranks: global means, one log step late."""

from __future__ import annotations


def test_values_are_means_over_all_ranks_and_arrive_one_log_step_late(launch):
    def reads():
        from hookpoint import Every, Loop
        from hookpoint.callbacks._shared.metric_watcher import MetricWatcher

        class Watches(MetricWatcher):
            def __init__(self, **options):
                super().__init__("reward", **options)
                self.seen = []

            def take(self, run, moment, value):
                self.seen.append([run.step, value])

        everywhere = Watches(name="everywhere").when(Every(steps=1))
        chief = Watches(name="chief", ranks="chief").when(Every(steps=4) | Every(epochs=1))
        rank = int(os.environ["RANK"])  # noqa: F821
        with Loop([everywhere, chief], extra_callbacks=[], monitors=[], log_every=2) as run:
            for _ in run.epochs(1):
                for _ in run.batches([["x"] * (1 + 2 * rank)] * 7):
                    run.log(reward=run.step + 10.0 * rank)
        return [everywhere.seen, chief.seen]

    first, second = launch(reads).results
    mean = [step + 7.5 for step in range(7)]  # over samples: one on rank 0, three on rank 1
    assert first[0] == second[0] == [[4, (mean[0] + mean[1]) / 2], [6, (mean[2] + mean[3]) / 2]]
    assert first[1] == [[4, (mean[0] + mean[1]) / 2], [7, sum(mean[2:]) / 5]]
    assert second[1] == []


def test_verdicts_and_saves_agree_even_if_values_differ_between_ranks(launch, tmp_path):
    def decides(workdir):
        import torch

        from hookpoint import Every, Loop
        from hookpoint.callbacks import MaxSaver, MinSaver, StopAtThreshold

        rank, model = int(os.environ["RANK"]), torch.nn.Linear(1, 1)  # noqa: F821
        callbacks = [
            StopAtThreshold("reward", 6.0, mode="max").when(Every(steps=1)),
            MaxSaver("reward").when(Every(steps=1)),
            MinSaver("put"),
        ]
        with Loop(callbacks, model=model, workdir=workdir, extra_callbacks=[], monitors=[], log_every=1) as run:
            for epoch in run.epochs(5):
                for _ in run.batches(range(3)):
                    run.log(reward=run.step if rank else 0.0)
                    run.put_scalar("put", epoch * (1 - 2 * rank) * 10 - epoch)
        _, most, least = callbacks
        return [run.step, run.metrics["put"], least.best.value, most.best.value]

    first, second = launch(decides, workdir=str(tmp_path / "run")).results
    assert first == second == [14, -5.0, -4.0, 6.0]


def test_a_resumed_run_sees_bitwise_identical_values(launch, tmp_path):
    def trains(workdir, kill_at=None):
        import random

        from hookpoint import Every, Loop
        from hookpoint.callbacks import ModelSaver
        from hookpoint.callbacks._shared.metric_watcher import MetricWatcher

        class Watches(MetricWatcher):
            def __init__(self, **options):
                super().__init__("reward", **options)
                self.seen = []

            def take(self, run, moment, value):
                self.seen.append([run.step, value])

            def state_dict(self):
                return {**super().state_dict(), "so far": list(self.seen)}

            def load_state_dict(self, state):
                super().load_state_dict(state)
                self.seen = list(state["so far"])

        watches, rank = Watches().when(Every(steps=3)), int(os.environ["RANK"])  # noqa: F821
        saver = ModelSaver().when(Every(steps=5))
        try:
            with Loop([watches, saver], workdir=workdir, extra_callbacks=[], monitors=[], log_every=2) as run:
                for epoch in run.epochs(2):
                    for batch in run.batches([["x"] * (1 + (index + rank) % 3) for index in range(11)]):
                        value = random.Random(100 * epoch + 2 * run.batch_idx + rank).gauss(0, 1)
                        run.log(reward=value * len(batch))
                        if run.step == kill_at:
                            raise KeyError
        except KeyError:
            pass
        return watches.seen

    whole = launch(trains, workdir=str(tmp_path / "whole")).results
    assert whole[0] == whole[1]
    launch(trains, workdir=str(tmp_path / "killed"), kill_at=8)
    assert launch(trains, workdir=str(tmp_path / "killed")).results == whole
    assert len(whole[0]) == 6
