"""The sockets that a rank opens if `hookpoint launch` has not started it."""

from __future__ import annotations

import socket

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("psutil")


def opened(port, local):
    """Join without a launcher's store; return the addresses this rank listens on, and whether it listens for the store."""
    import os

    import psutil

    from hookpoint.parallel.team.init_process import join_team

    os.environ.update(MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="False")
    if not local:
        del os.environ["LOCAL_WORLD_SIZE"]
    team = join_team()
    listening = [one.laddr for one in psutil.Process().net_connections("inet") if one.status == psutil.CONN_LISTEN]
    team.gather("seen by all")
    team.close()
    return sorted({one.ip for one in listening}), port in {one.port for one in listening}


@pytest.mark.parametrize("local", [True, False], ids=["as torchrun says", "by the address where they meet"])
def test_ranks_on_one_machine_listen_on_loopback(launch, local):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    results = launch(opened, port=port, local=local).results
    assert results == [[["127.0.0.1"], True], [["127.0.0.1"], False]]


def trained(strategy):
    """Train with a launcher's store; return the addresses this rank listens on."""
    import psutil
    import torch

    import hookpoint

    class Look(hookpoint.Callback):
        def on_train_epoch_end(self, run):
            sockets = psutil.Process().net_connections("inet")
            found.update(one.laddr.ip for one in sockets if one.status == psutil.CONN_LISTEN)

    found = set()
    model = torch.nn.Linear(4, 1)
    options = {"callbacks": [Look()], "strategy": getattr(hookpoint, strategy)(), "extra_callbacks": [], "monitors": []}
    runner = hookpoint.Runner(model, torch.optim.SGD(model.parameters(), lr=0.01), torch.nn.MSELoss(), **options)
    runner.fit((torch.randn(32, 4), torch.randn(32, 1)), epochs=1, batch_size=8)
    return sorted(found)


@pytest.mark.parametrize("strategy", ["DataParallel", "AsyncSGD"])
def test_ranks_that_train_on_one_machine_listen_on_loopback(launch, strategy):
    assert launch(trained, strategy=strategy).results == [["127.0.0.1"]] * 2
