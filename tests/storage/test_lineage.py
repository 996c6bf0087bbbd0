"""run.json names the runs and checkpoints that a run came from, and its data."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from torch import nn

import hookpoint
from hookpoint import Loop, Runner
from hookpoint.callbacks import ModelSaver, SwapEMAWeights
from hookpoint.storage.lineage import MAX_ENTRIES, lineage_of_init, valid


def fit(workdir, epochs=1, callbacks=(), **options):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    callbacks = [ModelSaver(), *callbacks]
    runner = Runner(
        *(model, optimizer, nn.MSELoss()), workdir=workdir, callbacks=callbacks, extra_callbacks=[], monitors=[], **options
    )
    runner.fit((torch.ones(8, 4), torch.ones(8, 1)), epochs=epochs, batch_size=4)
    return model


def facts_of(workdir):
    return json.loads((workdir / "run.json").read_text())


def hops(workdir):
    """Return the kind, run, checkpoint and epoch of each entry."""
    return [
        (entry["kind"], entry["run"]["name"], entry["checkpoint"], entry["epoch"])
        for entry in facts_of(workdir).get("lineage", ())
    ]


def test_a_new_run_has_no_lineage(tmp_path):
    fit(tmp_path / "new")
    assert "lineage" not in facts_of(tmp_path / "new")


def test_a_resumed_run_lists_its_checkpoints_until_a_new_start(tmp_path):
    for epochs in (1, 2, 3):
        fit(tmp_path, epochs, name="mine")
    assert hops(tmp_path) == [("resume", "mine", "step-00000002", 1), ("resume", "mine", "step-00000004", 2)]
    first, second = facts_of(tmp_path)["lineage"]
    assert first["run"] == {"id": facts_of(tmp_path)["id"], "name": "mine", "workdir": str(tmp_path)}
    assert [first["at"], second["at"]] == facts_of(tmp_path)["resumed"]
    fit(tmp_path, resume="never")
    assert hops(tmp_path) == []


def test_the_lineage_follows_weights_and_workdirs_even_if_they_are_gone(tmp_path):
    fit(tmp_path / "first", name="first")
    fit(tmp_path / "first", 2, name="first")
    weights = hookpoint.load_weights(tmp_path / "first")
    fit(tmp_path / "second", name="second", init_weights=weights)
    shutil.rmtree(tmp_path / "first")
    fit(tmp_path / "third", 2, name="third", resume=tmp_path / "second")
    fit(tmp_path / "third", 3, name="third")
    assert hops(tmp_path / "third") == [
        ("resume", "first", "step-00000002", 1),
        ("weights", "first", "step-00000004", 2),
        ("resume", "second", "step-00000002", 1),
        ("resume", "third", "step-00000004", 2),
    ]
    ids = [entry["run"]["id"] for entry in facts_of(tmp_path / "third")["lineage"]]
    assert ids[0] == ids[1] != ids[2] == facts_of(tmp_path / "second")["id"]


def test_init_weights_are_recorded_only_at_the_first_start(tmp_path):
    fit(tmp_path / "first", callbacks=[SwapEMAWeights(0.5)])
    checkpoint = tmp_path / "first" / "checkpoints" / "step-00000002"
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    for path, more in ((checkpoint, {}), (checkpoint / "model.safetensors", {}), (checkpoint, {"averaged": True})):
        workdir = tmp_path / f"from-{path.name}-{bool(more)}"
        for epochs in (1, 2):
            fit(workdir, epochs, init_weights=hookpoint.load_weights(path, **more))
        weights, resumed = facts_of(workdir)["lineage"]
        assert weights["sha256"] == manifest["files"]["model.safetensors"]["sha256"]
        assert weights.get("averaged") == ("True" if more else None)
        assert resumed["kind"] == "resume"


def test_weights_of_unknown_origin_are_recorded_without_a_run(tmp_path):
    fit(tmp_path / "plain", init_weights=nn.Linear(4, 1).state_dict())
    assert facts_of(tmp_path / "plain")["lineage"] == [
        {"kind": "weights", "tensors": 2, "at": facts_of(tmp_path / "plain")["started"]}
    ]
    fit(tmp_path / "first")
    copied = tmp_path / "copied.safetensors"
    shutil.copy(tmp_path / "first" / "checkpoints" / "step-00000002" / "model.safetensors", copied)
    assert lineage_of_init(hookpoint.load_weights(copied)) == [{"kind": "weights", "checkpoint": str(copied)}]


def test_weights_of_two_models_have_both_lineages(tmp_path):
    fit(tmp_path / "a")
    fit(tmp_path / "b")
    weights = {name: hookpoint.load_weights(tmp_path / name) for name in "ab"}
    sources = [entry["run"]["workdir"] for entry in lineage_of_init(weights)]
    assert sources == [str(tmp_path / "a"), str(tmp_path / "b")]


def test_loaded_weights_can_be_saved_and_loaded_safely(tmp_path):
    fit(tmp_path / "a")
    torch.save(hookpoint.load_weights(tmp_path / "a"), tmp_path / "a.pt")
    weights = torch.load(tmp_path / "a.pt", weights_only=True)
    assert list(weights) == ["weight", "bias"]


@pytest.mark.parametrize("junk", [None, 3, "x", {}, [3], [{}], [{"kind": "other"}], [{"kind": ["resume"]}]])
def test_invalid_entries_are_ignored(junk):
    assert valid(junk) == []


def test_only_known_values_are_kept():
    entry = {"kind": "resume", "step": "x", "epoch": 3, "checkpoint": ["a"], "run": {"id": 3, "name": "a"}, "more": 1}
    assert valid([entry]) == [{"kind": "resume", "epoch": 3, "run": {"name": "a"}}]


def test_a_long_lineage_keeps_every_run_but_not_all_of_its_resumes():
    def entry(kind, name, step):
        return {"kind": kind, "step": step, "run": {"name": name}}

    resumes = [entry("resume", "b", step) for step in range(MAX_ENTRIES)]
    found = valid([entry("weights", "a", 1), *resumes, entry("resume", "c", 7)])
    assert found == [entry("weights", "a", 1), resumes[-1], entry("resume", "c", 7)]
    assert len(valid([entry("weights", str(number), 1) for number in range(2 * MAX_ENTRIES)])) == MAX_ENTRIES


# Data


def test_the_data_of_a_runner_is_recorded_when_the_run_begins(tmp_path):
    class Looks(hookpoint.Callback):
        def on_run_begin(self, run):
            self.found = facts_of(tmp_path)["data"]

    looks = Looks()
    fit(tmp_path, callbacks=[looks])
    digest = looks.found["train"]["graph"]["inputs"][0].pop("digest")
    assert looks.found["train"].pop("dataset").endswith(f"({digest})")
    assert looks.found == {
        "train": {
            "graph": {"class": "DataLoader", "length": 2, "inputs": [{"class": "TensorDataset", "length": 8}]},
            "batches": 2,
            "batch_size": 4,
            "samples": 8,
            "order": "shuffled",
            "drop_last": False,
        }
    }


def test_the_data_of_a_loop_is_recorded_when_its_first_pass_begins(tmp_path):
    with Loop(workdir=tmp_path, extra_callbacks=[], monitors=[]) as run:
        assert "data" not in facts_of(tmp_path)
        for _ in run.epochs(1):
            for _ in run.batches([1, 2, 3]):
                assert facts_of(tmp_path)["data"] == {"train": {"graph": {"class": "list", "length": 3}, "batches": 3}}
            for _ in run.batches(iter([1]), mode="val"):
                pass
    assert facts_of(tmp_path)["data"]["val"] == {"graph": {"class": "list_iterator"}, "batches": None}


def test_a_dataset_that_cannot_be_described_does_not_end_the_run(tmp_path, caplog):
    class Odd:
        def __getitem__(self, index):
            return 1

        def __len__(self):
            raise ZeroDivisionError("no length")

    class Loader:
        def __init__(self):
            self.dataset = Odd()

        def __iter__(self):
            return iter([1])

    with Loop(workdir=tmp_path, extra_callbacks=[], monitors=[]) as run:
        assert list(run.batches(Loader())) == [1]
    assert "the train data could not be described: no length" in caplog.text
    assert "data" not in facts_of(tmp_path)
