"""Loopback: keep the sockets of ranks on one machine off the network.

torch binds its stores to all network interfaces and unpickles their contents. Anyone who can connect to a store can therefore
run code as the user who runs the training. If all ranks run on one machine, no other machine needs access.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from ipaddress import ip_address

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.constants import default_pg_timeout

ADDRESS = "127.0.0.1"
INTERFACES = ("lo", "lo0")  # the loopback interface's name on Linux and on macOS


def loopback_store(port: int, *, timeout: timedelta = default_pg_timeout) -> TCPStore:
    """Return a store that listens only on loopback. With port 0, the system chooses a free port."""
    listening = socket.create_server((ADDRESS, port))
    port = listening.getsockname()[1]
    return TCPStore(ADDRESS, port, is_master=True, wait_for_workers=False, timeout=timeout, master_listen_fd=listening.detach())


def is_one_machine() -> bool:
    """Return whether all ranks are on this machine, according to torchrun's environment variables or MASTER_ADDR."""
    if "LOCAL_WORLD_SIZE" in os.environ:
        return os.environ["LOCAL_WORLD_SIZE"] == os.environ.get("WORLD_SIZE")
    address = os.environ.get("MASTER_ADDR", "")
    try:
        return address == "localhost" or ip_address(address).is_loopback
    except ValueError:
        return False


def interface_settings() -> dict[str, str]:
    """Return the environment variables that bind gloo, NCCL and torch RPC sockets to the loopback interface."""
    found = [name for _, name in socket.if_nameindex() if name in INTERFACES]
    if not found:
        return {}
    return {"GLOO_SOCKET_IFNAME": found[0], "NCCL_SOCKET_IFNAME": f"={found[0]}", "TP_SOCKET_IFNAME": found[0]}
