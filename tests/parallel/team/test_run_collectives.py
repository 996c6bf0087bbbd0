from __future__ import annotations


def test_run_reduces_agrees_and_broadcasts_across_ranks(launch):
    def talk():
        import torch  # noqa: F401

        from hookpoint import Loop

        with Loop(extra_callbacks=[], monitors=[]) as run:
            mine = run.rank + 1
            return {
                "places": [run.rank, run.local_rank, run.world_size, run.data_rank, run.model_rank, run.is_chief],
                "reduced": [run.reduce(mine, op) for op in ("sum", "mean", "max", "min")],
                "agreed": [run.agree(run.rank == 1), run.agree(False)],
                "broadcast": [run.broadcast({"from": run.rank}), run.broadcast([run.rank], source=1)],
            }

    first, second = launch(talk).results
    assert first["places"] == [0, 0, 2, 0, 0, True]
    assert second["places"] == [1, 1, 2, 1, 0, False]
    for one in (first, second):
        assert one["reduced"] == [3.0, 1.5, 2.0, 1.0]
        assert one["agreed"] == [True, False]
        assert one["broadcast"] == [{"from": 0}, [1]]
