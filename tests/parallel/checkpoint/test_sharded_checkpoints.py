"""Sharded checkpoints: each rank writes its own shards and reads those it needs."""

from __future__ import annotations

import os
import shutil

import pytest

import hookpoint
from hookpoint.storage.checkpoint.checkpoint_folder import read_manifest

torch = pytest.importorskip("torch")

FULL = os.environ.get("HOOKPOINT_FAULTS") == "all"
SAME = ("step", "model", "optimizer", "gradients", "averages")
PARTS = ("model", "optimizer", "gradients")


@pytest.fixture
def subject(scripts):
    """Return the module with the tests' run, to use in a single process."""
    import sharded_subject

    return sharded_subject


def test_each_rank_writes_its_own_shards_and_reads_what_it_needs(launch, tmp_path, subject):
    def two(folder):
        import shutil

        import torch.distributed as dist
        from sharded_subject import RANK, Events, train, train_two

        from hookpoint.storage.disk._fs_calls import intercepted

        first, again, grown = Events(stop_at=7), Events(), Events()  # in the middle of an accumulation window, after some steps
        found = {"whole": train(f"{folder}/whole"), "stopped": train(f"{folder}/run", events=first)}
        if RANK == 0:
            shutil.copytree(f"{folder}/run", f"{folder}/moving")
        dist.barrier()
        read = set()

        def note(operation, proceed):
            if operation.name == "open" and "/step-00000003/" in operation.path:
                read.add(operation.path.rpartition("/")[2])
            return proceed()

        with intercepted(note):
            found["resumed"] = train(f"{folder}/run", events=again)
        found["read"] = sorted(read)
        found["kept"], found["put back"] = first.kept, again.put_back
        found["two whole"] = train_two(f"{folder}/two-whole")
        train_two(f"{folder}/two", stop_at=4)
        found["two"] = train_two(f"{folder}/two")
        found["poisoned"] = train(f"{folder}/poisoned", events=Events(stop_at=7, poison_at=6))["step"]
        train(f"{folder}/grown", events=grown, allow_world_change=True)
        found["grown"] = grown.put_back
        return found

    def three(folder):
        from sharded_subject import Events, train

        events = Events()
        train(folder, events=events, allow_world_change=True)
        return events.put_back

    one = subject.Events(stop_at=7)
    subject.train(str(tmp_path / "grown"), events=one)
    results = launch(two, folder=str(tmp_path)).results
    kept = results[0]["kept"]  # batch-norm statistics are the chief's from the next step on
    for result in results:
        assert [name for name in SAME if result["whole"][name] != result["resumed"][name]] == []
        assert result["put back"] == kept
        assert result["two"] == result["two whole"]
        assert result["grown"] == one.kept
        assert result["poisoned"] == 3
    assert results[1]["read"] == [".metadata", "__1_0.distcp", "manifest.json", "state.pt"]  # the chief verifies all
    assert not list((tmp_path / "poisoned" / "checkpoints").glob("step-00000003*"))
    assert not list(tmp_path.glob("*/checkpoints/.staging*"))
    assert hookpoint.verify(tmp_path / "run").ok

    # Read by a single process
    moving = tmp_path / "moving"
    folder = moving / "checkpoints" / "step-00000003"
    weights, averaged = hookpoint.load_weights(moving), hookpoint.load_weights(moving, averaged=True)
    assert subject.digest(weights) == kept["model"]
    assert subject.digest(averaged) == results[0]["stopped"]["averages"]
    model = subject.Net()
    assert list(weights) == list(model.state_dict())
    model.load_state_dict(weights)
    assert weights["first.weight"].data_ptr() == weights["second.weight"].data_ptr()
    assert set(hookpoint.load_weights(tmp_path / "two")) == {"one", "other"}
    hookpoint.load_weights(moving / "checkpoints" / "best-loss")

    # No rank has written, or could have written, a full tensor
    sizes = {name: file.size for name, file in read_manifest(folder).files.items()}
    numbers = sum(one.numel() for name, one in weights.items() if name != "second.weight") * 4
    assert sorted(sizes) == [".metadata", "__0_0.distcp", "__1_0.distcp", "state.pt"]
    assert sizes["__0_0.distcp"] + sizes["__1_0.distcp"] > 3.5 * numbers  # weights, two of Adam, averages, gradients
    assert sizes["__0_0.distcp"] < 1.05 * sizes["__1_0.distcp"]

    # Other numbers of ranks
    alone, shrunk = tmp_path / "alone", subject.Events()
    shutil.copytree(moving, alone)
    subject.train(str(alone), events=shrunk, allow_world_change=True)
    assert shrunk.put_back == kept
    assert [found == kept for found in launch(three, ranks=3, folder=str(moving)).results] == [True] * 3


def test_a_failed_save_and_a_damaged_shard_are_handled_on_all_ranks(launch, tmp_path):
    def fail(folder):
        import errno
        from pathlib import Path

        import torch.distributed as dist
        from sharded_subject import RANK, Events, train

        from hookpoint.core.errors import CannotSave
        from hookpoint.storage.disk._fs_calls import intercepted

        def full(operation, proceed):
            if RANK == 1 and operation.name == "write" and operation.path.endswith("__1_0.distcp"):
                raise OSError(errno.ENOSPC, "No space left on device", operation.path)
            return proceed()

        found = {}
        with intercepted(full):
            try:
                train(f"{folder}/full", events=Events(stop_at=7))
            except CannotSave as error:
                found["full"] = [error.errno == errno.ENOSPC, "__1_0.distcp" in str(error)]
        found["left"] = [path.name for path in Path(folder, "full", "checkpoints").iterdir()]

        # A byte of the newest checkpoint is changed: it is set aside, and the run resumes from the one before it.
        first, again = Events(stop_at=4), Events()
        train(f"{folder}/damaged", events=first)
        train(f"{folder}/damaged", events=Events(stop_at=6))
        newest = Path(folder, "damaged", "checkpoints", "step-00000003", "__1_0.distcp")
        if RANK == 0:
            data = bytearray(newest.read_bytes())
            data[len(data) // 2] ^= 1
            newest.write_bytes(data)
        dist.barrier()
        found["after"] = train(f"{folder}/damaged", events=again)
        found["older"] = [again.put_back[name] == first.kept[name] for name in ("model", "optimizer")]
        return found

    results = launch(fail, folder=str(tmp_path)).results
    for result in results:
        assert result["full"] == [True, True]  # all ranks know at once: none waits for a timeout
        assert result["left"] == []
        assert result["older"] == [True, True]
        assert result["after"]["step"] == 4
    assert (tmp_path / "damaged" / "checkpoints" / "damaged-step-00000003").is_dir()
    assert hookpoint.verify(tmp_path / "damaged").ok


@pytest.mark.parametrize("restarts", ["by hand", pytest.param("by torchrun", marks=pytest.mark.slow)])
def test_a_kill_during_a_save_keeps_the_previous_checkpoint(launch, tmp_path, restarts):
    def killed(folder, kills, attempt=None):
        import os
        import signal
        from pathlib import Path

        from sharded_subject import RANK, Events, train

        import hookpoint
        from hookpoint.storage.disk._fs_calls import intercepted

        attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"]) if attempt is None else attempt
        where = [*kills, (-1, "", "")][attempt]

        def kill(operation, proceed):
            rank, name, end = where
            if (
                rank == RANK
                and operation.name == name
                and operation.path.endswith(end)
                and "staging-step-00000004" in operation.path
            ):
                Path(folder, f"killed{attempt}").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return proceed()

        events, workdir = Events(), Path(folder, "run")
        good = str(hookpoint.verify(workdir)) if attempt else ""
        with intercepted(kill):
            result = train(str(workdir), events=events)
        return {"whole": train(f"{folder}/whole"), "result": result, "good": good, "put back": events.put_back}

    kills = [(1, "write", "__1_0.distcp"), (0, "create", "state.pt")]  # (rank, operation, file)
    kills += [(1, "create", "__1_0.distcp"), (0, "rename", ".metadata.tmp"), (0, "rename", "")] if FULL else []
    given = {"folder": str(tmp_path), "kills": kills}
    if restarts == "by hand":
        for attempt in range(len(kills)):
            assert launch(killed, check=False, attempt=attempt, **given).status
        results = launch(killed, attempt=len(kills), **given).results
    else:
        options = ("--max-restarts", str(len(kills)), "--monitor-interval", "0.1")
        results = launch(killed, torchrun=options, **given).results
    assert len(list(tmp_path.glob("killed*"))) == len(kills)
    for result in results:
        assert result["result"] == result["whole"]
        assert "step-00000002" in result["good"]
        assert "step-00000004" not in result["good"]
        assert result["put back"]
    assert hookpoint.verify(tmp_path / "run").ok
    assert not list(tmp_path.glob("run/checkpoints/.*"))
