"""Validation and prediction on multiple ranks without training: all load the same checkpoint."""

from __future__ import annotations

import pytest


@pytest.mark.thin(3)
@pytest.mark.parametrize("strategy", ["DataParallel", "Sharded", "PipelineParallel", "ParameterAveraging", "AsyncSGD"])
def test_all_ranks_load_the_same_weights(strategy, launch, tmp_path):
    def go(workdir, strategy):
        import torch

        import hookpoint
        from hookpoint.callbacks import ModelSaver

        data = (torch.arange(32.0).reshape(16, 2) / 32, torch.ones(16, 1))
        options = {"PipelineParallel": {"split": (1,), "microbatches": 2}}.get(strategy, {})

        def runner(seed, *callbacks, **more):
            torch.manual_seed(seed)
            model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 1))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            chosen = getattr(hookpoint, strategy)(**options)
            return hookpoint.Runner(
                model,
                optimizer,
                torch.nn.MSELoss(),
                callbacks=callbacks,
                extra_callbacks=[],
                monitors=[],
                workdir=workdir,
                strategy=chosen,
                **more,
            )

        first = runner(0, ModelSaver())
        first.fit(data, epochs=2, batch_size=4)
        wanted = first.validate(data, batch_size=4)
        again = runner(1, resume="must")
        found = [again.validate(data, batch_size=4), again.validate(data, batch_size=4)]
        alone = runner(1, resume="never").validate(data, batch_size=4)
        again.fit(data, epochs=2, batch_size=4)  # the run is finished: nothing is trained
        return [wanted, *found, again.validate(data, batch_size=4), alone]

    for wanted, *found, alone in launch(go, workdir=str(tmp_path / "run"), strategy=strategy).results:
        assert found == [wanted] * 3
        assert alone != wanted


def test_the_number_of_ranks_may_differ_between_saving_and_evaluating(launch, tmp_path):
    def train(workdir):
        import torch

        import hookpoint
        from hookpoint.callbacks import ModelSaver

        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        saver, loss = ModelSaver(), torch.nn.MSELoss()
        runner = hookpoint.Runner(model, optimizer, loss, callbacks=[saver], workdir=workdir, strategy=hookpoint.Sharded())
        runner.fit((torch.ones(8, 2), torch.zeros(8, 1)), epochs=1, batch_size=4)
        return runner.validate((torch.ones(8, 2), torch.zeros(8, 1)), batch_size=4)

    def evaluate(workdir):
        import torch

        import hookpoint

        torch.manual_seed(1)
        runner = hookpoint.Runner(torch.nn.Linear(2, 1), None, torch.nn.MSELoss(), workdir=workdir, resume="must")
        return runner.validate((torch.ones(8, 2), torch.zeros(8, 1)), batch_size=4)

    several = launch(train, workdir=str(tmp_path / "several")).results
    assert launch(evaluate, ranks=1, workdir=str(tmp_path / "several")).results == several[:1]
    one = launch(train, ranks=1, workdir=str(tmp_path / "one")).results
    assert launch(evaluate, workdir=str(tmp_path / "one")).results == one * 2


def test_all_ranks_skip_a_deleted_checkpoint_and_raise_if_any_cannot_read(launch, tmp_path):
    def go(workdir):
        import torch

        import hookpoint
        from hookpoint.callbacks import ModelSaver
        from hookpoint.storage.disk._fs_calls import intercepted

        data = (torch.ones(8, 2), torch.zeros(8, 1))

        def runner(*callbacks):
            torch.manual_seed(0)
            model = torch.nn.Linear(2, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            return hookpoint.Runner(model, optimizer, torch.nn.MSELoss(), callbacks=callbacks, workdir=workdir)

        runner(ModelSaver()).fit(data, epochs=3, batch_size=4)
        newest = max((Path(workdir) / "checkpoints").glob("step-*"))  # noqa: F821
        rank, done = int(os.environ["RANK"]), []  # noqa: F821

        def by(operation, proceed):
            if rank == 1 and not done and operation.path.endswith(f"{newest.name}/manifest.json"):
                done.append(True)
                newest.rename(newest.with_name(".deleting-x"))
            return proceed()

        with intercepted(by):
            evaluated = runner()
            evaluated.validate(data, batch_size=4)
        second = max((Path(workdir) / "checkpoints").glob("step-*"))  # noqa: F821
        wanted = hookpoint.load_weights(second)
        same = all(torch.equal(one, wanted[name]) for name, one in evaluated.model.state_dict().items())

        def fails(operation, proceed):
            if rank == 1 and operation.path.endswith("model.safetensors"):
                raise PermissionError(13, "no", operation.path)
            return proceed()

        with intercepted(fails):
            try:
                runner().validate(data, batch_size=4)
            except hookpoint.HookpointError as error:
                return [same, newest.exists(), type(error).__name__]

    assert launch(go, workdir=str(tmp_path / "run")).results == [[True, False, "CannotResume"]] * 2
