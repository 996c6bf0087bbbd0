from __future__ import annotations

import json

import pytest

from hookpoint.plots.figure_layout import PlotOptions
from hookpoint.run_folder.run_curves import figure_of_runs
from hookpoint.run_folder.run_folder import RunFolder


def test_thinned_curves_keep_steps_at_their_epochs(tmp_path):
    (tmp_path / "mine").mkdir()
    with open(tmp_path / "mine" / "scalars.jsonl", "w") as file:
        for step in range(1, 20_001):
            row = {"step": step, "iteration": step, "epoch": 1 + step // 1000, "time": 1.7e9 + step, "at": "step"}
            file.write(json.dumps({**row, "loss": float(step)}) + "\n")
    (panel,) = figure_of_runs([RunFolder(tmp_path / "mine")], PlotOptions(x="epoch"), columns=100).panels
    (curve,) = panel.curves
    for x, step in zip(curve.xs, curve.ys, strict=True):
        assert x == pytest.approx((step + 1) / 1000 if step >= 1000 else step / 999, abs=0.003)
