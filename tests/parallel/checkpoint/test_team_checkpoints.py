from __future__ import annotations

from hookpoint.storage.load_weights import load_weights
from hookpoint.storage.run_file import read_run_file
from hookpoint.storage.verify import verify

SAME = ("step", "weights", "optimizer", "rate", "generators", "seen", "metrics", "scalars")


def test_a_run_on_two_ranks_resumes_bit_for_bit(launch, sample, tmp_path):
    def exact(folder, kinds, epochs, every):
        from contextlib import suppress
        from functools import partial

        import subject
        from subject import Cut, Ledger

        train = partial(subject.train, epochs=epochs, every=every)

        found = {}
        for kind in kinds:
            per_epoch = 3 if kind == "loop" else 6
            whole = train(kind, f"{folder}/{kind}-whole")
            stopped = train(kind, f"{folder}/{kind}", ledger=Ledger(stop_at=per_epoch - 1))
            assert stopped["stop"] == "it was told to", stopped
            for cut in (per_epoch + 2, 2 * per_epoch + 1)[: epochs - 1]:
                with suppress(Cut):
                    raise AssertionError(train(kind, f"{folder}/{kind}", ledger=Ledger(fail_at=cut)))
            found[kind] = [whole, train(kind, f"{folder}/{kind}")]
        return found

    kinds, epochs = sample(["loop"], ["loop", "data", "sharded"]), sample(2, 3)
    results = launch(exact, folder=str(tmp_path), kinds=kinds, epochs=epochs, every=sample(4, 2)).results
    for kind in kinds:
        for rank, result in enumerate(results):
            whole, resumed = result[kind]
            assert [name for name in SAME if whole[name] != resumed[name]] == [], (kind, rank)
        assert results[0][kind][0]["generators"] != results[1][kind][0]["generators"]
        assert results[0][kind][0]["metrics"] == results[1][kind][0]["metrics"]
    folder = tmp_path / kinds[-1]
    assert verify(folder).ok
    assert load_weights(folder)["0.weight"].shape == (12, 6)
    facts = read_run_file(folder)
    assert (facts["status"], facts["identity"]["world_size"]) == ("finished", 2)
    assert len(facts["resumed"]) == epochs
