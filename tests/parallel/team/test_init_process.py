"""What a process opens when it joins the others, where `hookpoint launch` has not prepared it."""

from __future__ import annotations

import socket

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("psutil")


def opened(port, local):
    """Join others where no launcher has made the store; return where this process listens, and whether the store is there."""
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
def test_processes_on_one_machine_listen_on_loopback(launch, local):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    results = launch(opened, port=port, local=local).results
    assert results == [[["127.0.0.1"], True], [["127.0.0.1"], False]]
