"""LoopbackRendezvous: how the processes that torchrun starts on one machine meet, out of reach of the network."""

from __future__ import annotations

from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from hookpoint.parallel.team.loopback import ADDRESS, loopback_store

BACKEND = "loopback"


class LoopbackRendezvous(RendezvousHandler):
    """A rendezvous of one machine. Its store listens on loopback, and all processes share it.

    Each restart gets a new store: in an old one, new processes would find the addresses of dead ones. What torchrun itself
    keeps in a store stays in its process.
    """

    def __init__(self, run_id: str, port: int) -> None:
        self._run_id = run_id
        self._port = port
        self._store: TCPStore | None = None

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        self._store = None  # frees the port
        self._store = loopback_store(self._port)
        return RendezvousInfo(HashStore(), 0, 1, RendezvousStoreInfo(ADDRESS, self._store.port))

    def get_backend(self) -> str:
        return BACKEND

    def get_run_id(self) -> str:
        return self._run_id

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def shutdown(self) -> bool:
        self._store = None
        return True
