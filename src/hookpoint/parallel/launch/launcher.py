"""Launcher: run torchrun, with all sockets on loopback if all ranks are on one machine.

`hookpoint launch` runs this module as `python -m hookpoint.parallel.launch.launcher`, with torchrun's options.
"""

from __future__ import annotations

import os
import sys
import uuid
from argparse import ArgumentParser, Namespace

from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.elastic import rendezvous
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from torch.distributed.run import get_args_parser, parse_min_max_nnodes, run

from hookpoint.parallel.team.loopback import ADDRESS, interface_settings, loopback_store

BACKEND = "loopback"
# These torchrun options matter only with multiple machines.
MULTI_NODE = ("rdzv_backend", "rdzv_endpoint", "rdzv_conf", "master_addr", "node_rank", "local_addr")


class LoopbackRendezvous(StaticTCPRendezvous):
    """A rendezvous on one machine. All ranks share a store that listens only on loopback.

    Each restart uses a new store, because the old store contains the addresses of dead processes.
    """

    def __init__(self, run_id: str, port: int) -> None:
        super().__init__(ADDRESS, port, rank=0, world_size=1, run_id=run_id, timeout=0)  # there is no other machine to wait for

    def next_rendezvous(self) -> rendezvous.RendezvousInfo:
        self._store = None  # frees the port
        self._store = store = loopback_store(self.master_port)
        return rendezvous.RendezvousInfo(HashStore(), 0, 1, rendezvous.RendezvousStoreInfo(ADDRESS, store.port))

    def get_backend(self) -> str:
        return BACKEND

    def shutdown(self) -> bool:
        self._store = None
        return True


@record
def main() -> None:
    parser = get_args_parser()
    parser.prog = "hookpoint launch"
    options = parser.parse_args()
    _, machines = parse_min_max_nnodes(options.nnodes)
    if machines == 1:
        _stay_on_loopback(options, parser)
    else:
        # Use a new store for each restart, because a shared store would contain the addresses of dead processes.
        os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    run(options)  # type: ignore[no-untyped-call]


def _stay_on_loopback(options: Namespace, parser: ArgumentParser) -> None:
    """Use a rendezvous on loopback, whatever the options specify. --master-port still sets the port."""
    unused = [name for name in MULTI_NODE if getattr(options, name) != parser.get_default(name)]
    if unused:
        names = ", ".join("--" + name.replace("_", "-") for name in unused)
        print(f"hookpoint launch: ignoring {names}: all ranks run on one machine unless you pass --nnodes", file=sys.stderr)
    port = 0 if options.master_port == parser.get_default("master_port") else options.master_port
    rendezvous.rendezvous_handler_registry.register(BACKEND, lambda parameters: LoopbackRendezvous(parameters.run_id, port))
    os.environ.update(interface_settings())
    options.standalone, options.rdzv_backend, options.rdzv_endpoint = False, BACKEND, ADDRESS
    if options.rdzv_id == parser.get_default("rdzv_id"):
        options.rdzv_id = str(uuid.uuid4())


if __name__ == "__main__":
    main()
