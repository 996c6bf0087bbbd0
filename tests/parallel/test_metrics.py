"""Metrics of multiple ranks equal those of a single process with all of the data."""

from __future__ import annotations

import json

import pytest

from hookpoint.core.loop.loop import Loop


def test_means_are_exact_with_uneven_shards_and_equal_on_all_ranks(launch):
    def means():
        import torch  # noqa: F401

        from hookpoint import Callback, Loop
        from hookpoint.monitors.history import History

        class Say(Callback):
            def __init__(self):
                self.said = []

            def on_epoch_end(self, run):
                self.said.append(dict(run.metrics))

        say, history = Say(), History()
        rank = int(os.environ["RANK"])  # noqa: F821
        train = [[0.1 * (rank + 1)] * (1 + rank), [0.3], [0.7] * 3]
        val = [[[1.0, 2.0], [4.0]], [[8.0]]][rank]
        with Loop([say, history], extra_callbacks=[], monitors=[], log_every=2) as run:
            for _ in run.epochs(2):
                for batch in run.batches(train):
                    run.log(loss=batch[0])
                    if run.rank == 1:
                        run.log(only_here=1.0)
                passed = run.batches(val, mode="val")
                for batch in passed:
                    run.log(loss=sum(batch) / len(batch))
        return [say.said, passed.results]

    first, second = launch(means).results
    assert first == second
    training = (0.1 * 1 + 0.3 + 0.7 * 3 + 0.2 * 2 + 0.3 + 0.7 * 3) / (5 + 6)
    for epoch in first[0]:
        assert epoch["loss"] == pytest.approx(training, rel=1e-15)
        assert epoch["val_loss"] == (1.0 + 2.0 + 4.0 + 8.0) / 4
        assert epoch["only_here"] == 1.0
    assert first[1] == {"val_loss": 3.75}


def test_a_saver_reads_a_metric_that_only_the_chief_logs(launch, tmp_path):
    def save(folder):
        import torch  # noqa: F401

        from hookpoint import Loop
        from hookpoint.callbacks import EarlyStopping, MinSaver

        saver, stopping = MinSaver("score"), EarlyStopping("score", mode="min", patience=1)
        with Loop([saver, stopping], workdir=folder, extra_callbacks=[], monitors=[]) as run:
            for epoch in run.epochs(9):
                for _ in run.batches([1.0, 2.0]):
                    pass
                if run.is_chief:
                    run.log(score=abs(epoch - 2.0))
        return run.epoch

    assert launch(save, folder=str(tmp_path / "run")).results == [3, 3]
    best = json.loads((tmp_path / "run" / "checkpoints" / "best-score" / "manifest.json").read_text())
    assert best["clocks"]["epoch"] == 2


def test_inferencers_measure_all_of_the_data_even_if_a_shard_is_empty(launch, tmp_path):
    def infer(folder):
        import torch

        from hookpoint import CallbackPipeline, Loop
        from hookpoint.callbacks import (
            BinaryClassificationStats,
            ClassificationError,
            InferenceRunner,
            MinSaver,
            ScalarStats,
        )

        class Sum:
            def __init__(self):
                self.reset()

            def reset(self):
                self.values = []

            def update(self, outputs, targets):
                self.values += (outputs.argmax(1) == targets).float().tolist()

            def compute(self):
                return sum(self.values) / len(self.values)

        numbers = torch.Generator().manual_seed(1)
        logits, targets = torch.randn(13, 2, generator=numbers), torch.randint(0, 2, (13,), generator=numbers)
        rank, seen = int(os.environ["RANK"]), []  # noqa: F821

        def batches(begin, end):
            return [(logits[at : min(at + 3, end)], targets[at : min(at + 3, end)]) for at in range(begin, end, 3)]

        for split in (5, 0, 13):
            mine = batches(0, split) if rank == 0 else batches(split, 13)
            runner = InferenceRunner(
                mine,
                [
                    ClassificationError("wrong-top1", "error"),
                    ScalarStats("score", prefix="val"),
                    BinaryClassificationStats(lambda out, t: out["logits"].argmax(1), lambda out, t: t, prefix="two"),
                ],
                metrics={"right": lambda out, t: (out["logits"].argmax(1) == t).float().mean()},
                forward=lambda run: {"logits": run.batch[0], "score": run.batch[0][:, 0]},
            )
            alone = InferenceRunner(
                batches(0, 13),
                ScalarStats("score", prefix="alone"),
                ranks="chief" if split == 5 else None,
                forward=lambda run: {"score": run.batch[0][:, 0]},
            )
            on_chief = alone if split == 5 else CallbackPipeline([alone]).set_chief_only()
            saver = MinSaver("alone_score")  # only the chief has this metric, but all ranks take part in the save
            with Loop([runner, on_chief, saver], workdir=f"{folder}/{split}", extra_callbacks=[], monitors=[]) as run:
                for _ in run.epochs(2):
                    for _ in run.batches([1.0]):
                        pass
            seen.append({name: value for name, value in run.metrics.items() if not name.startswith("alone")})
        error = (logits.argmax(1) != targets).double().mean().item()
        return [seen, error, logits[:, 0].double().mean().item(), run.metrics.get("alone_score")]

    first, second = launch(infer, folder=str(tmp_path)).results
    assert first[:3] == second[:3]
    assert len(list(tmp_path.glob("*/checkpoints/best-alone_score/manifest.json"))) == 3
    seen, error, score, alone = first
    for values in seen:
        assert values["error"] == error
        assert values["val_score"] == pytest.approx(score, rel=1e-12)
        assert values["right"] == pytest.approx(1 - error, rel=1e-6)
        counts = [values[f"two_{name}"] for name in ("true_positives", "false_positives", "false_negatives", "true_negatives")]
        assert sum(counts) == 13
    assert alone == pytest.approx(score, rel=1e-12)
    assert second[3] is None


def test_metrics_of_a_runner_cover_the_data_of_all_ranks(launch):
    def fit():
        import torch

        from hookpoint import Loop
        from hookpoint.engine._metric_set import MetricSet

        class Share:
            def reset(self):
                self.right, self.all = 0, 0

            def update(self, outputs, targets):
                self.right += int((outputs > targets).sum())
                self.all += len(targets)

            def compute(self):
                return self.right / self.all

        rank = int(os.environ["RANK"])  # noqa: F821
        outputs = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
        mine = outputs[:1] if rank == 0 else outputs[1:]
        with Loop([MetricSet({"share": Share(), "mean": lambda out, t: out.mean()})], extra_callbacks=[], monitors=[]) as run:
            for _ in run.epochs(1):
                for _ in run.batches([mine]):
                    run.outputs, run.targets = mine, torch.full_like(mine, 2.5)
        return dict(run.metrics)

    assert launch(fit).results == [{"share": 0.6, "mean": 3.0}] * 2


def test_collective_calls_work_in_a_single_process():
    with Loop([]) as run:
        assert run.reduce(3, "mean") == 3.0
        assert run.agree(True) is True
        assert run.agree(False) is False
        assert run.broadcast({"a": 1}) == {"a": 1}
        assert run.gather(1) == [1]
        assert (run.data_rank, run.model_rank, run.is_chief, run.team.size) == (0, 0, True, 1)
