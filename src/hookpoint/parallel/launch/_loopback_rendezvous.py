"""LoopbackRendezvous: the rendezvous of torchrun on one machine, off the network."""

from __future__ import annotations

from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from hookpoint.parallel.team.loopback import ADDRESS, loopback_store

BACKEND = "loopback"


class LoopbackRendezvous(RendezvousHandler):
    """Meet on one machine, in a store on loopback that all ranks share.

    Each restart gets a new store: the old one holds the addresses of dead processes. torchrun keeps its own entries private.
    """

    def __init__(self, run_id: str, port: int) -> None:
        self._run_id, self._port = run_id, port
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
