from __future__ import annotations


def test_a_stop_on_one_rank_stops_all_at_the_same_step(launch, sample):
    def stop(times):
        import random

        import torch  # noqa: F401

        from hookpoint import Callback, Loop

        class StopAt(Callback):
            def __init__(self, step):
                self.at, self.reasons = step, []

            def on_iter_end(self, run):
                if run.rank == 1 and run.iteration == self.at:
                    run.stop(f"at {self.at}")

        ends = []
        numbers = random.Random(7)
        for _ in range(times):
            at, epochs = numbers.randrange(1, 12), 0
            with Loop([StopAt(at)], extra_callbacks=[], monitors=[], log_every=3) as run:
                for _ in run.epochs(3):
                    epochs += 1
                    for _ in run.batches([1.0, 2.0, 3.0, 4.0]):
                        run.log(loss=1.0)
            ends.append([at, run.iteration, epochs, run.stop_reason])
        return ends

    times = sample(5, 50)
    first, second = launch(stop, times=times).results
    assert first == second
    assert len(first) == times
    assert all(iterations in (at, at + 1) and reason == f"at {at}" for at, iterations, _, reason in first)
    assert {iterations - at for at, iterations, _, _ in first} == {
        0,
        1,
    }  # at once where the ranks communicate anyway: log steps, epoch ends


def test_a_setting_changed_on_one_rank_changes_on_all_at_the_same_step(launch, sample):
    def settings(times):
        import random

        import torch

        from hookpoint import Callback, Loop

        class Set(Callback):
            def __init__(self, at, rank):
                self.at, self.rank, self.seen = at, rank, []

            def on_iter_begin(self, run):
                self.seen.append(run.optimizer.param_groups[0]["lr"])

            def on_iter_end(self, run):
                if run.rank == self.rank and run.iteration == self.at:
                    run.hyper["learning_rate"] = 0.25
                    assert run.hyper["learning_rate"] == 0.25

        numbers, seen = random.Random(3), []
        for number in range(times):
            model = torch.nn.Linear(1, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
            change = Set(numbers.randrange(1, 8), number % 2)
            with Loop([change], optimizer=optimizer, extra_callbacks=[], monitors=[]) as run:
                for _ in run.epochs(2):
                    for _ in run.batches([1.0] * 5):
                        optimizer.step()
            seen.append([change.at, change.seen])
        return seen

    first, second = launch(settings, times=sample(5, 50)).results
    assert first == second
    for at, rates in first:
        assert rates == [0.5] * rates.count(0.5) + [0.25] * rates.count(0.25)
        assert rates.count(0.5) in (at, at + 1)


def test_rates_of_several_optimizers_keep_their_ratios_on_all_ranks(launch):
    def settings():
        import torch

        from hookpoint import Loop
        from hookpoint.callbacks import ReduceLROnPlateau

        actor, critic = (torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=rate) for rate in (0.5, 2.0))
        seen = []
        reduce = ReduceLROnPlateau("loss", factor=0.5, patience=1)
        with Loop([reduce], optimizer={"actor": actor, "critic": critic}, extra_callbacks=[], monitors=[]) as run:
            for epoch in run.epochs(4):
                seen.append([actor.param_groups[0]["lr"], critic.param_groups[0]["lr"]])
                for _ in run.batches([1.0] * 3):
                    run.log(loss=1.0)
                    actor.step()
                if epoch == 1 and run.rank == 1:
                    run.hyper["lr@critic"] = 1.0
        return seen

    first, second = launch(settings).results
    assert first == second == [[0.5, 2.0], [0.5, 1.0], [0.25, 0.5], [0.125, 0.25]]


def test_a_setting_changed_at_the_end_of_an_epoch_applies_from_the_next_step(launch):
    def settings():
        import torch

        from hookpoint import Loop
        from hookpoint.callbacks import ScheduledHyperParamSetter

        model = torch.nn.Linear(1, 1)
        optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.5), []
        setters = [ScheduledHyperParamSetter("learning_rate", [(1, 0.1)])]
        with Loop(setters, optimizer=optimizer, extra_callbacks=[], monitors=[]) as run:
            for _ in run.epochs(3):
                for _ in run.batches([1.0, 2.0]):
                    seen.append(optimizer.param_groups[0]["lr"])
                    optimizer.step()
                if run.is_chief and run.epoch == 2:
                    run.hyper["lr"] = 0.01
        return seen

    assert launch(settings).results == [[0.5, 0.5, 0.1, 0.1, 0.01, 0.01]] * 2


def test_stop_epoch_on_one_rank_ends_the_epoch_on_all(launch):
    def stop_epoch():
        import torch  # noqa: F401

        from hookpoint import Callback, Loop

        class End(Callback):
            def on_iter_end(self, run):
                if run.rank == 1 and run.epoch == 1 and run.batch_idx == 2:
                    run.stop_epoch()

        seen = []
        with Loop([End()], extra_callbacks=[], monitors=[]) as run:
            for epoch in run.epochs(2):
                seen.extend([epoch, batch] for batch in run.batches(range(8)))
        return seen

    expected = [[1, batch] for batch in range(4)] + [[2, batch] for batch in range(8)]
    assert launch(stop_epoch).results == [expected] * 2


def test_stop_run_and_a_stop_at_on_run_begin_stop_all_ranks(launch):
    def stops():
        import torch  # noqa: F401

        from hookpoint import Callback, Loop, StopRun

        class Raise(Callback):
            def on_iter_end(self, run):
                if run.rank == 1 and run.iteration == 2:
                    raise StopRun("raised")

        class AtBegin(Callback):
            def on_run_begin(self, run):
                if run.rank == 1:
                    run.stop("at once")

        ends = []
        for callback in (Raise(), AtBegin()):
            with Loop([callback], extra_callbacks=[], monitors=[]) as run:
                for _ in run.epochs(2):
                    for _ in run.batches(range(8)):
                        pass
            ends.append([run.iteration, run.epoch, run.stop_reason])
        return ends

    assert launch(stops).results == [[[3, 1, "raised"], [0, 0, "at once"]]] * 2


def test_a_signal_to_one_rank_stops_all_at_the_same_step(launch):
    def signalled():
        import os
        import signal

        import torch  # noqa: F401

        from hookpoint import Callback, Loop

        class Kill(Callback):
            def on_iter_end(self, run):
                if run.rank == 1 and run.iteration == 5:
                    os.kill(os.getpid(), signal.SIGTERM)

        status = None
        try:
            with Loop([Kill()], extra_callbacks=[], monitors=[]) as run:
                for _ in run.epochs(2):
                    for _ in run.batches(range(20)):
                        pass
        except SystemExit as end:
            status = end.code
        return [run.iteration, run.epoch, status, run.stop_reason]

    assert launch(signalled).results == [[6, 1, 143, "SIGTERM was received"]] * 2


def test_a_declared_skip_on_one_rank_skips_the_same_batch_on_all(launch):
    def skips():
        import torch  # noqa: F401

        from hookpoint import Callback, Loop

        class Skip(Callback):
            may_skip = True

            def __init__(self):
                self.skipped = []

            def on_iter_begin(self, run):
                if run.mode == "train" and run.rank == 1 and run.batch in (2, 5):
                    run.skip_batch()

            def on_backward_end(self, run):
                if run.rank == 0 and run.batch == 3:
                    run.skip_step()

            def on_iter_skip(self, run):
                self.skipped.append(run.batch)

        skip, seen, stepped = Skip(), [], []
        with Loop([skip], extra_callbacks=[], monitors=[]) as run:
            for _ in run.epochs(1):
                for batch in run.batches(range(8)):
                    seen.append(batch)
                    run.fire("on_backward_end")
                    if "step" not in run.skipped:
                        stepped.append(batch)
                for _ in run.batches(range(3 + run.rank), mode="val"):
                    pass
        return [skip.skipped, seen, stepped]

    assert launch(skips).results == [[[2, 5], [0, 1, 3, 4, 6, 7], [0, 1, 4, 6, 7]]] * 2


def test_an_undeclared_skip_and_a_retry_raise(launch):
    def refused():
        import torch  # noqa: F401

        from hookpoint import Callback, Loop

        class Skip(Callback):
            def on_iter_begin(self, run):
                run.skip_batch()

        class Retry(Callback):
            def on_iter_begin(self, run):
                run.retry()

        said = []
        for callback in (Skip(), Retry()):
            try:
                with Loop([callback], extra_callbacks=[], monitors=[]) as run:
                    for _ in run.batches(range(3)):
                        pass
            except ValueError as error:
                said.append(str(error))
        try:
            with Loop(extra_callbacks=[], monitors=[]) as run:
                for _ in run.batches(range(3)):
                    run.skip_step()
        except ValueError as error:
            said.append(str(error))
        return said

    for said in launch(refused).results:
        assert said[0] == (
            "Skip calls skip_batch(), which all 2 ranks must agree on.\n  declare   may_skip = True in its class"
        )
        assert said[1].startswith("run.retry() supports one rank; this run has 2")
        assert said[2].startswith("the loop's body calls skip_step()")


def test_ranks_agree_on_settings_and_the_lowest_rank_wins(launch):
    def settings():
        import torch  # noqa: F401

        from hookpoint import Loop, ObjAttrParam
        from hookpoint.callbacks import HumanHyperParamSetter

        class Model:
            dropout, noise = 0.5, 0.0

        model, seen = Model(), []
        workdir = Path(os.environ["RESULTS"]) / "run"  # noqa: F821
        human = HumanHyperParamSetter(ObjAttrParam(model, "dropout"))
        with Loop([human], extra_callbacks=[], monitors=[], workdir=workdir) as run:
            run.hyper.register(ObjAttrParam(model, "noise"))
            for epoch in run.epochs(3):
                if epoch == 1 and run.is_chief:
                    (workdir / "hyper.txt").write_text("dropout:0.25\n")
                for _ in run.batches(range(3)):
                    seen.append([model.dropout, model.noise])
                    if epoch == 2 and run.batch_idx == 0:
                        run.hyper["noise"] = 1.0 + run.rank
            refused = []
            for name, value in (("noise", "much"), ("nosie", 1.0)):
                try:
                    run.hyper[name] = value
                except (TypeError, KeyError) as error:
                    refused.append(type(error).__name__)
        return [seen, refused]

    outcome = launch(settings)
    first, second = outcome.results
    assert first == second
    rates = [dropout for dropout, _ in first[0]]
    assert rates == [0.5] * 3 + [0.25] * 6
    assert [noise for _, noise in first[0]] == [0.0] * 5 + [1.0] * 4
    assert first[1] == ["BadValue", "UnknownSetting"]
    assert "noise is set to 1.0 and to 2.0 by different ranks; 1.0 is used" in outcome.printed


def test_a_signal_during_a_validation_stops_all_ranks_after_it(launch):
    def signalled():
        import os
        import signal

        import torch  # noqa: F401

        from hookpoint import Loop

        status, seen = None, 0
        try:
            with Loop(extra_callbacks=[], monitors=[]) as run:
                for _ in run.epochs(2):
                    for _ in run.batches(range(3)):
                        pass
                    for batch in run.batches(range(4 + run.rank), mode="val"):
                        seen += 1
                        if run.rank == 1 and batch == 1:
                            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            status = "interrupted"
        return [run.epoch, run.iteration, seen, status]

    assert launch(signalled).results == [[1, 3, 4, "interrupted"], [1, 3, 5, "interrupted"]]


def test_callbacks_on_the_chief_stop_all_ranks_and_set_the_rate_of_all(launch):
    def train():
        import torch

        from hookpoint import CallbackPipeline, Loop
        from hookpoint.callbacks import MaxSteps, ScheduledHyperParamSetter

        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        rates = []
        group = CallbackPipeline([MaxSteps(7), ScheduledHyperParamSetter("learning_rate", [(0, 0.5), (1, 0.25)])])
        with Loop([group.set_chief_only()], optimizer=optimizer, extra_callbacks=[], monitors=[]) as run:
            for _ in run.epochs(3):
                for _ in run.batches([1.0, 2.0, 3.0, 4.0]):
                    optimizer.step()
                    rates.append(optimizer.param_groups[0]["lr"])
        return [run.step, rates]

    first, second = launch(train).results
    assert first == second == [8, [0.5] * 4 + [0.25] * 4]
