from __future__ import annotations

import socket

import pytest

torch = pytest.importorskip("torch")

from torch.distributed import TCPStore  # noqa: E402

from hookpoint.parallel.launch.launcher import LoopbackRendezvous  # noqa: E402


def test_each_attempt_gets_a_new_store_at_the_given_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    rendezvous = LoopbackRendezvous("a", port)
    ports = []
    for _ in range(2):
        found = rendezvous.next_rendezvous().bootstrap_store_info
        store = TCPStore(found.master_addr, found.master_port, is_master=False)
        assert not store.check(["address"])
        store.set("address", "of a process")
        ports.append(found.master_port)
    assert ports == [port, port]
    assert rendezvous.shutdown()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
