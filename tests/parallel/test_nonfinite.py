"""Non-finite losses and state, on one rank and on all of them."""

from __future__ import annotations

import pytest

from hookpoint.storage.workdir.find_checkpoint import newest_good


def test_a_run_ends_only_if_the_losses_of_all_ranks_are_not_finite(launch):
    def fit(bad_ranks):
        import torch
        from torch import nn

        from hookpoint import LambdaCallback, Runner
        from hookpoint.core.errors import NonFiniteLoss

        ended = []
        for bad in bad_ranks:
            addend = float("nan") if int(os.environ["RANK"]) in bad else 0.0  # noqa: F821
            model, steps = nn.Linear(2, 1), []
            runner = Runner(
                model,
                torch.optim.SGD(model.parameters(), lr=0.01),
                lambda outputs, targets, addend=addend: nn.functional.mse_loss(outputs, targets) + addend,
                callbacks=[LambdaCallback(on_train_iter_end=lambda run, steps=steps: steps.append(run.step))],
                extra_callbacks=[],
                monitors=[],
                log_every=2,
            )
            try:
                runner.fit([(torch.ones(2, 2), torch.ones(2, 1))] * 9, epochs=1)
                ended.append([steps[-1], ""])
            except NonFiniteLoss as error:
                ended.append([steps[-1], str(error).partition(",")[0]])
        return ended

    first, second = launch(fit, bad_ranks=[[0], [1], [0, 1]]).results
    assert first == second == [[9, ""], [9, ""], [4, "all losses at log steps 2 and 4 are NaN or infinite"]]


@pytest.mark.parametrize("strategy", ["Sharded", "PipelineParallel"])
def test_each_rank_checks_its_part_of_the_optimizer_state(launch, tmp_path, strategy):
    def fit(workdir, strategy):
        import torch
        from torch import nn

        import hookpoint
        from hookpoint import Callback, Every, Runner
        from hookpoint import callbacks as cb
        from hookpoint.core.errors import NotFinite

        class Spoil(Callback):
            def on_train_iter_end(self, run):
                if run.step == 3 and run.rank == 1:
                    for state in run.optimizer.state.values():
                        moment = state["exp_avg_sq"]
                        (moment.to_local() if hasattr(moment, "to_local") else moment).fill_(float("inf"))

        torch.set_num_threads(1)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 1))
        runner = Runner(
            model,
            torch.optim.Adam(model.parameters()),
            nn.MSELoss(),
            callbacks=[Spoil(), cb.ModelSaver().when(Every(steps=1))],
            workdir=workdir,
            strategy=hookpoint.Sharded() if strategy == "Sharded" else hookpoint.PipelineParallel(["2"], microbatches=2),
            extra_callbacks=[],
            monitors=[],
        )
        try:
            runner.fit((torch.randn(32, 8), torch.randn(32, 1)), epochs=1, batch_size=4)
        except NotFinite as error:
            return str(error).splitlines()[0]

    for said in launch(fit, workdir=str(tmp_path / "run"), strategy=strategy).results:
        assert "exp_avg_sq" in said
        assert "of the optimizer" in said
    assert newest_good(tmp_path / "run").manifest.step == 2
