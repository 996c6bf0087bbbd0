"""LossLandscape and EmbeddingCollector on several ranks."""

from __future__ import annotations

import json


def test_the_chief_evaluates_while_others_wait_and_split_models_raise(launch, tmp_path):
    def check(folder):
        import time
        from pathlib import Path

        import torch
        from torch import nn

        from hookpoint import DataParallel, Runner, Sharded, errors
        from hookpoint import callbacks as cb

        data = torch.arange(32.0).reshape(16, 2) / 16, torch.ones(16, 1)

        def slow(model, batch):
            time.sleep(0.02)
            return ((model(batch[0]) - batch[1]) ** 2).mean()

        def fit(name, strategy, *callbacks):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            where = {"workdir": Path(folder, name), "strategy": strategy, "extra_callbacks": []}
            run = Runner(model, optimizer, nn.MSELoss(), callbacks=callbacks, **where).fit(data, epochs=3, batch_size=4)
            return run.step

        def landscape():
            return cb.LossLandscape(data, slow, size=5, batch_size=16)

        step = fit("replicated", DataParallel(), landscape(), cb.ModelSaver())
        table = fit("table", Sharded(), cb.EmbeddingCollector("0"))
        try:
            fit("sharded", Sharded(), landscape())
        except errors.HookpointError as error:
            refused = str(error)
        return {"step": step, "table": table, "refused": refused}

    outcome = launch(check, folder=str(tmp_path))
    assert outcome.status == 0, outcome.printed
    for result in outcome.results:
        assert result["step"] == result["table"] == 6
    assert "LossLandscape: the model is split over ranks (0.weight)" in outcome.results[0]["refused"]
    assert "the other rank is gone" in outcome.results[1]["refused"]
    found = json.loads((tmp_path / "replicated" / "landscape" / "landscape.json").read_text())
    assert len(found["path"]) == 4
    assert all(value is not None for row in found["loss"] for value in row)
    (tensors,) = (tmp_path / "table" / "tensorboard" / "projector").rglob("tensors.tsv")
    assert [len(line.split("\t")) for line in tensors.read_text().splitlines()] == [2] * 8
