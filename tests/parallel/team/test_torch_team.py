"""Process groups end with the run, including their threads, which could abort the process at interpreter exit."""

from __future__ import annotations


def test_a_run_leaves_no_threads_behind(launch):
    def leave():
        import time

        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        from hookpoint import Callback, DataParallel, Loop, Runner, Sharded
        from hookpoint.parallel.team.init_process import gloo_states, let_rest

        class Cut(Callback):
            def on_train_iter_end(self, run):
                if run.iteration == 2:
                    raise KeyError("cut")

        dist.init_process_group("gloo")
        while len(gloo_states()) < 2:  # a thread sets its name when it begins
            time.sleep(0.01)
        held, found = [], {"before": len(gloo_states())}

        def fit(strategy, *callbacks):
            model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            criterion = torch.nn.functional.mse_loss
            runner = Runner(
                model, optimizer, criterion, callbacks=callbacks, strategy=strategy, extra_callbacks=[], monitors=[]
            )
            held.append(runner)
            held.append(runner.fit((torch.ones(16, 2), torch.ones(16, 2)), epochs=1, batch_size=2))

        for strategy in (DataParallel, Sharded):
            fit(strategy())
            found[strategy.__name__] = len(gloo_states())
            try:
                fit(strategy(), Cut())
            except KeyError:
                found[f"{strategy.__name__} cut"] = len(gloo_states())
        model = DistributedDataParallel(torch.nn.Linear(1, 1))
        with Loop(model=model, extra_callbacks=[], monitors=[]) as run:
            for _ in run.epochs(1):
                for _ in run.batches(range(3)):
                    model(torch.ones(1, 1)).sum().backward()
        found["loop"] = len(gloo_states())
        try:
            run.reduce(1.0)
        except ValueError as error:
            found["after"] = str(error)
        let_rest()
        found["at rest"] = set(gloo_states()) == {"S"}
        return found

    for found in launch(leave).results:
        assert found.pop("after") == "the process group is closed; the run has ended.\n  call      collectives inside the run"
        assert found.pop("at rest")
        assert len(found) == 6  # before any run and after each, there are only the threads of the default group
        assert len(set(found.values())) == 1, found


def test_a_team_and_a_strategy_are_ready_only_after_all_ranks_have_connected(launch):
    def join():
        import time
        from contextlib import suppress

        import torch
        import torch.distributed as dist

        from hookpoint import AsyncSGD, DataParallel, TensorParallel
        from hookpoint.core.errors import BadStrategy

        dist.init_process_group("gloo")
        store, connect, ready = dist.distributed_c10d._get_default_store(), dist.new_group, []
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
        for strategy, groups in ((DataParallel(), 2), (AsyncSGD(), 3), (TensorParallel({"0": "colwise", "1": "rowwise"}), 3)):
            key, calls = f"rank 1 has connected for {type(strategy).__name__}", []

            def connect_slowly(*, key=key, calls=calls, groups=groups, **options):
                group = connect(**options)
                calls.append(group)
                if len(calls) == groups:
                    time.sleep(0.2)  # rank 0 could have ended in this time, and closed its sockets
                    store.set(key, "")
                return group

            if dist.get_rank() == 1:
                dist.new_group = connect_slowly
            team = strategy.team()
            if isinstance(strategy, TensorParallel):
                with suppress(BadStrategy):  # all ranks reject the optimizer
                    strategy.setup(model, optimizer, torch.device("cpu"))
            ready.append(store.check([key]))
            team.close()
        return ready

    assert launch(join).results == [[True] * 3] * 2


def test_closing_a_team_does_not_wait_for_a_rank_that_does_not_answer(launch):
    def part():
        import os
        import time
        from contextlib import suppress

        import torch.distributed as dist

        from hookpoint.parallel.team import torch_team

        torch_team.LAST_SECONDS = 0.2
        dist.init_process_group("gloo")
        team, others = torch_team.TorchTeam(seconds=300), torch_team.TorchTeam(seconds=300)
        if team.rank == 1:
            others.gather(os.getpid())
            others.close()
            return None  # without an answer in the first team
        team.start_agreeing(1)
        team.close()
        team.close()
        _, other = others.gather(os.getpid())
        others.close()
        with suppress(ProcessLookupError):
            while True:
                os.kill(other, 0)
                time.sleep(0.01)
        time.sleep(0.1)  # for the threads of gloo, whose connections are closed now
        return "left"

    outcome = launch(part)
    assert outcome.results == ["left", None]
    assert "terminate" not in outcome.printed
