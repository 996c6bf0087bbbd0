"""`hookpoint launch` runs a script in multiple processes."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("torch")

SCRIPT = """
import os, sys
with open(f"rank{os.environ['RANK']}", "w") as file:
    file.write(f"{os.environ['WORLD_SIZE']} {os.environ['MASTER_ADDR']} {' '.join(sys.argv[1:])}")
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def launched(warm_python, tmp_path):
    """Return `launched(*options)`: run the launcher in a warm process; return its exit code and output."""

    def run(*options, printed="printed"):
        with warm_python(Path(__file__).with_name("forked_launcher.py")) as stream:
            order = {"arguments": [*map(str, options)], "folder": str(tmp_path), "printed": printed}
            stream.write(json.dumps(order) + "\n")
            stream.flush()
            return json.loads(stream.readline()), (tmp_path / printed).read_text()

    return run


def test_a_script_runs_in_multiple_processes_with_its_arguments(process, script, tmp_path):
    done = process("launch", "-n", 2, "--max-restarts", 0, script, "--epochs", "3", "-n", "7", text=True)
    assert done.returncode == 0, done.stderr
    assert "ignoring" not in done.stderr
    assert [(tmp_path / f"rank{rank}").read_text() for rank in range(2)] == ["2 127.0.0.1 --epochs 3 -n 7"] * 2


def test_rendezvous_options_are_ignored_on_a_single_machine(launched, script, tmp_path):
    options = ["--nnodes", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "0.0.0.0:0", "--rdzv-id", "mine"]
    code, printed = launched("--nproc-per-node", 1, *options, script, "--standalone")
    assert code == 0, printed
    assert (tmp_path / "rank0").read_text() == "1 127.0.0.1 --standalone"
    assert printed.count("ignoring --rdzv-backend, --rdzv-endpoint") == 1


def test_multiple_machines_connect_through_the_endpoint(launched, script, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def machine(number):
        options = ["--nnodes", 2, "--node-rank", number, "--master-addr", "localhost", "--master-port", port]
        return launched("--nproc-per-node", 1, *options, script, printed=f"printed{number}")

    with ThreadPoolExecutor() as pool:
        done = list(pool.map(machine, range(2)))
    assert [code for code, _ in done] == [0, 0], done
    assert [(tmp_path / f"rank{rank}").read_text() for rank in range(2)] == ["2 localhost "] * 2


def test_a_failed_process_makes_launch_fail(launched, script):
    script.write_text("raise SystemExit(3)")
    code, printed = launched("--nproc-per-node", 2, script)
    assert code > 0
    assert "exitcode  : 3" in printed


LISTENING = """
import json, os
import psutil
sockets = psutil.Process().parent().net_connections("inet")
with open(f"rank{os.environ['RANK']}", "w") as file:
    json.dump([one.laddr for one in sockets if one.status == psutil.CONN_LISTEN], file)
"""


def test_the_store_of_a_launch_listens_on_loopback(launched, script, tmp_path):
    pytest.importorskip("psutil")
    script.write_text(LISTENING)
    code, printed = launched("--nproc-per-node", 2, script)
    assert code == 0, printed
    addresses = {ip for rank in range(2) for ip, _ in json.loads((tmp_path / f"rank{rank}").read_text())}
    assert addresses == {"127.0.0.1"}


TRAINED = """
import ipaddress, json, os, socket, sys
import psutil, torch
from hookpoint import AsyncSGD, Callback, DataParallel, Runner

def is_loopback(ip):
    address = ipaddress.ip_address(ip.partition("%")[0])
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback

def reached(port):
    for ip in (one.address for all_of_one in psutil.net_if_addrs().values() for one in all_of_one):
        if one_of_the_network(ip):
            try:
                socket.create_connection((ip, port), timeout=5).close()
                yield ip, port
            except OSError:
                pass

def one_of_the_network(ip):
    try:
        return not is_loopback(ip) and not ipaddress.ip_address(ip.partition("%")[0]).is_link_local
    except ValueError:  # of hardware
        return False

class Look(Callback):
    def __init__(self, name):
        self.name = name

    def on_train_epoch_end(self, run):
        if not run.is_chief:
            return
        launcher = psutil.Process().parent()
        sockets = [one for process in (launcher, *launcher.children(recursive=True)) for one in process.net_connections("inet")]
        open_ones = [one.laddr for one in sockets if one.status == psutil.CONN_LISTEN or one.type == socket.SOCK_DGRAM]
        found = {
            "processes": 1 + len(launcher.children(recursive=True)),
            "is_in_groups": any(one.port != int(os.environ["MASTER_PORT"]) for one in open_ones),
            "has_store": any(one.port == int(os.environ["MASTER_PORT"]) for one in open_ones),
            "off_loopback": [one for one in open_ones if not is_loopback(one.ip)],
            "reached": [one for address in open_ones for one in reached(address.port)],
        }
        with open(self.name + ".json", "w") as file:
            json.dump(found, file)

for strategy in (DataParallel(), AsyncSGD(staleness=4)):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    look = Look(type(strategy).__name__)
    runner = Runner(model, optimizer, torch.nn.MSELoss(), callbacks=[look], strategy=strategy, extra_callbacks=[], monitors=[])
    runner.fit((torch.randn(32, 4), torch.randn(32, 1)), epochs=1, batch_size=8)
"""


@pytest.mark.slow
def test_processes_of_a_launch_listen_on_loopback_only(process, script, tmp_path):
    psutil = pytest.importorskip("psutil")
    script.write_text(TRAINED)
    others = [name for name, state in psutil.net_if_stats().items() if state.isup and not name.startswith("lo")]
    environment = {"GLOO_SOCKET_IFNAME": others[0], "NCCL_SOCKET_IFNAME": others[0]} if others else {}  # as clusters do
    done = process("launch", "-n", 2, script, environment=environment, text=True)
    assert done.returncode == 0, done.stderr
    for name in ("DataParallel", "AsyncSGD"):
        found = json.loads((tmp_path / f"{name}.json").read_text())
        assert found == {"processes": 3, "is_in_groups": True, "has_store": True, "off_loopback": [], "reached": []}, name


RESTARTED = """
import os, socket
store = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
socket.create_connection(store).close()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    raise SystemExit(1)
with open(f"rank{os.environ['RANK']}", "w") as file:
    file.write("%s:%d" % store)
"""


def test_restarted_processes_connect_to_the_same_port(launched, script, tmp_path):
    script.write_text(RESTARTED)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    code, printed = launched("--nproc-per-node", 2, "--max-restarts", 1, "--master-port", port, script)
    assert code == 0, printed
    assert [(tmp_path / f"rank{rank}").read_text() for rank in range(2)] == [f"127.0.0.1:{port}"] * 2


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (["-n", "0", "train.py"], "-n must be a number of processes >= 1, or auto, got 0"),
        (["-n", "two", "train.py"], "-n must be a number of processes >= 1, or auto, got two"),
        (["nothing.py"], "script not found: nothing.py"),
        ([], "Missing argument"),
    ],
)
def test_invalid_arguments_are_rejected(command, arguments, output):
    assert output in command("launch", *arguments, code=2).stderr
