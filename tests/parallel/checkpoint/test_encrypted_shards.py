"""Encrypted checkpoints of several ranks, each of which writes and reads its own shards."""

from __future__ import annotations

import os

import pytest

import hookpoint
from hookpoint.core.errors import CannotResume, DamagedCheckpoint
from hookpoint.storage.checkpoint import encryption

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography", reason="needs the extra crypto")

SAME = ("step", "model", "optimizer", "gradients", "averages")


def test_shards_are_encrypted_on_every_rank_and_a_run_resumes_only_with_the_key(launch, tmp_path, monkeypatch, forge):
    def two(folder):
        import shutil

        import torch.distributed as dist
        from sharded_subject import RANK, Events, train

        from hookpoint.core.errors import HookpointError
        from hookpoint.storage.checkpoint import encryption

        def forget():
            dist.barrier()
            encryption._known.clear()

        def attempt(name, **options):
            forget()
            events = Events()
            try:
                return {"step": train(f"{folder}/{name}", events=events, **options)["step"]}
            except HookpointError as error:
                return {"kind": type(error).__name__, "text": str(error), "loaded": events.put_back}

        found = {"whole": train(f"{folder}/whole")}
        stopped = Events(stop_at=7)
        train(f"{folder}/run", events=stopped, checkpoint_key=f"{folder}/run.key")
        copies = ("plain", "flipped", "forged")
        if RANK == 0:
            for name in ("missing", "wrong", "one", *copies):
                shutil.copytree(f"{folder}/run", f"{folder}/{name}")
        found["missing"] = attempt("missing")
        found["wrong"] = attempt("wrong", checkpoint_key=f"{folder}/wrong.key")
        found["one"] = attempt("one", checkpoint_key=f"{folder}/{'run' if RANK == 0 else 'wrong'}.key")
        found["new"] = attempt("new", **({"checkpoint_key": f"{folder}/run.key"} if RANK else {}))
        forget()
        again = Events()
        found["resumed"] = train(f"{folder}/run", events=again, checkpoint_key=f"{folder}/run.key")
        found["kept"], found["put back"] = stopped.kept, again.put_back
        return found

    for name in ("run", "wrong"):
        (tmp_path / f"{name}.key").write_bytes(os.urandom(32))
    outcome = launch(two, folder=str(tmp_path))
    assert outcome.status == 0, outcome.printed
    for result in outcome.results:
        assert [name for name in SAME if result["whole"][name] != result["resumed"][name]] == []
        assert result["put back"] == outcome.results[0]["kept"]  # batch-norm statistics come from the chief
        assert result["missing"]["kind"] == result["wrong"]["kind"] == "CannotResume"
        assert "no key was given" in result["missing"]["text"]
        assert "the key given has fingerprint" in result["wrong"]["text"]
        for name in ("one", "new"):
            assert result[name]["kind"] == "BadStrategy"
            assert "checkpoint_key differs between ranks" in result[name]["text"]
        assert [result[name]["loaded"] for name in ("missing", "wrong", "one")] == [{}] * 3
    assert not list((tmp_path / "new").rglob("step-*"))
    folder = tmp_path / "plain" / "checkpoints" / "step-00000003"
    shards = sorted(path.name for path in folder.glob("*.distcp"))
    assert shards == ["__0_0.distcp", "__1_0.distcp"]
    for path in folder.iterdir():
        assert path.name == "manifest.json" or path.read_bytes()[:8] == encryption.MAGIC

    # Read by a single process
    monkeypatch.setattr(encryption, "_known", {})
    with pytest.raises(CannotResume, match="no key was given"):
        hookpoint.load_weights(tmp_path / "plain")
    assert hookpoint.verify(tmp_path / "plain").ok
    weights = hookpoint.load_weights(tmp_path / "plain", key=tmp_path / "run.key")
    assert set(weights) >= {"first.weight", "head.bias"}
    for name, message in (("flipped", "changed after it was written"), ("forged", "changed after it was encrypted")):
        folder = tmp_path / name / "checkpoints" / "step-00000003"
        data = bytearray((folder / "__1_0.distcp").read_bytes())
        data[len(data) // 2] ^= 1
        (folder / "__1_0.distcp").write_bytes(data)
        if name == "forged":
            forge(folder, "__1_0.distcp")
        with pytest.raises(DamagedCheckpoint, match=message):
            hookpoint.load_weights(folder)
