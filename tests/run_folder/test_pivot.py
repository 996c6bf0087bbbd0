from __future__ import annotations

from hookpoint.run_folder.pivot import WideTable


def test_rows_appended_later_are_left_out(train_run):
    path = train_run(epochs=1) / "scalars.jsonl"
    found = WideTable(path)
    with open(path, "a") as file:
        file.write('{"step": 6, "epoch": 2, "time": 1.0, "at": "step", "new": 1}\n')
    assert [{key: value for key, value in row.items() if key != "time"} for row in found.rows()] == [
        {"step": 2, "iteration": 2, "epoch": 1, "at": "step", "loss": 1.5},
        {"step": 4, "iteration": 4, "epoch": 1, "at": "step", "loss": 3.5},
        {"step": 4, "iteration": 4, "epoch": 1, "at": "epoch", "loss": 2.5, "val_loss": 3.0},
    ]
