"""The state of a process on this machine, as text."""

from __future__ import annotations

from pathlib import Path

STOPPED, GONE = "stopped", "gone"
STATES = {"T": STOPPED, "t": f"{STOPPED} by a debugger", "R": "running", "S": "alive, waiting", "D": "waiting for the disk"}


def state_of_process(pid: int) -> str:
    """Return a state such as "stopped", "running" or "gone". Return "alive" if the system gives no details."""
    try:
        facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return GONE if Path("/proc/self/stat").exists() else "alive"
    return GONE if facts[0] in "ZX" else STATES.get(facts[0], "alive")
