from __future__ import annotations

from hookpoint.core.checkpoint.rank_state import extract_rank_state, merge_rank_states, state_for_rank


def state(rank, *, gradients=None, in_epoch=True):
    place = {"in_epoch": False}
    if in_epoch:
        place = {"in_epoch": True, "rng": {"python": rank}, "passes": [{"results": {}, "batches": 2, "rng": {}}], "batches": 3}
    return {
        "per_rank": ["Mine"],
        "clocks": {"step": 3, "samples": 10 + rank, "elapsed": 1.0 + rank},
        "place": place,
        "parts": {"model": {"w": 1}, **({} if gradients is None else {"gradients": {"w": gradients}})},
        "callbacks": {"Mine": {"state": rank}, "Shared": {"state": rank}},
        "logbook": {"metrics": {}, "next_log_step": 4, "between": {}, "window": {"loss": [1.0 + rank, 2.0]}, "whole": {}},
        "data": {"begun": rank},
        "rng": {"python": rank},
    }


def of_two(**more):
    return merge_rank_states(state(0, **more), [extract_rank_state(state(1, **more))])


def test_each_process_gets_its_own_state_back():
    for rank in range(2):
        back = state_for_rank(of_two(), rank, 2)
        expected = {key: value for key, value in state(rank).items() if key != "per_rank"}
        expected["callbacks"] = {"Mine": {"state": rank}, "Shared": {"state": 0}}
        expected["clocks"]["elapsed"] = 1.0  # the chief's, on every rank
        assert back == expected


def test_gradients_of_an_open_window_are_kept_per_process():
    kept = merge_rank_states(state(0, gradients=4.0), [extract_rank_state(state(1, gradients=8.0))])
    assert [state_for_rank(kept, rank, 2)["parts"]["gradients"]["w"] for rank in range(2)] == [4.0, 8.0]
    assert state_for_rank(kept, 0, 1)["parts"]["gradients"]["w"] == 6.0  # as the mean over processes would have been


def test_the_state_of_a_single_process_is_unchanged():
    alone = {key: value for key, value in state(0).items() if key != "per_rank"}
    assert state_for_rank(alone, 0, 1) == alone


def test_another_number_of_processes_drops_the_rng_and_sums_on_the_chief():
    moved = [state_for_rank(of_two(), rank, 3) for rank in range(3)]
    assert [one["logbook"]["window"] for one in moved] == [{"loss": [3.0, 4.0]}, {}, {}]
    assert [one["clocks"]["samples"] for one in moved] == [7, 7, 7]
    for rank, one in enumerate(moved):
        assert one["rng"] is None
        assert one["place"]["rng"] is None
        assert one["place"]["passes"][0]["rng"] is None
        assert one["moved"] == {"from": 2, "to": 3}
        assert one["data"]["moved"] == {"data": {"begun": 0}, "from": 2, "to": 3, "rank": rank}


def test_there_is_no_place_to_move_between_epochs():
    assert state_for_rank(of_two(in_epoch=False), 0, 1)["place"] == {"in_epoch": False}


def test_unread_values_move_to_another_number_of_processes():
    def with_windows(rank):
        one = state(rank)
        more = {"late": {"loss": [1.0, 1.0 + rank]}, "put": {"norm": [3.0 * rank, 1.0]}, "in_flight": {"loss": [5.0, 2.0]}}
        return {**one, "logbook": {**one["logbook"], **more}}

    kept = merge_rank_states(with_windows(0), [extract_rank_state(with_windows(1))])
    moved = [state_for_rank(kept, rank, 3)["logbook"] for rank in range(3)]
    assert [one["late"] for one in moved] == [{"loss": [2.0, 3.0]}, {}, {}]
    assert [one["put"] for one in moved] == [{"norm": [3.0, 2.0]}, {}, {}]
    assert [one["in_flight"] for one in moved] == [{"loss": [5.0, 2.0]}] * 3  # already a mean over all processes
