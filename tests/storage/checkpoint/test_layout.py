from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookpoint.storage.checkpoint.layout import (
    SAFE,
    Place,
    best_name,
    damaged_name,
    is_leftover,
    next_place,
    next_previous,
    safe_name,
)


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (Place(0), "step-00000000"),
        (Place(1200), "step-00001200"),
        (Place(1200, 2), "step-00001200-2"),
        (Place(123456789), "step-123456789"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_place_and_its_name_convert_to_each_other(place, name):
    assert place.name == name
    assert Place.of(name) == place


@pytest.mark.parametrize(
    "name",
    [
        "last",
        "step-1200",
        "step-000001200",
        "step-00001200-1",
        "step-00001200-02",
        "best-a",
        ".step-00001200",
        "step-00001200\n",
    ],
)
def test_other_names_are_not_places(name):
    assert Place.of(name) is None


def test_later_places_are_greater():
    assert sorted([Place(10), Place(9, 2), Place(9), Place(9, 10)]) == [Place(9), Place(9, 2), Place(9, 10), Place(10)]


def test_a_second_checkpoint_of_a_step_gets_the_next_number():
    assert next_place([], 5) == Place(5)
    assert next_place(["step-00000005", "best-x"], 5) == Place(5, 2)
    assert next_place(["step-00000005-3", "step-00000006-9"], 5) == Place(5, 4)


def test_damaged_checkpoints_are_numbered():
    assert damaged_name("step-00000005", []) == "damaged-step-00000005"
    assert damaged_name("step-00000005", ["damaged-step-00000005"]) == "damaged-step-00000005.2"
    taken = ["damaged-step-00000005", "damaged-step-00000005.2"]
    assert damaged_name("step-00000005", taken) == "damaged-step-00000005.3"


def test_previous_runs_are_numbered():
    assert next_previous([]) == "001"
    assert next_previous(["001", "007", "mine", "²"]) == "008"
    assert next_previous(["999"]) == "1000"


def test_only_our_own_hidden_names_are_leftovers():
    assert is_leftover(".staging-step-00000001-0123456789abcdef")
    assert is_leftover(".deleting-best-x-0123456789abcdef")
    for name in (".staging-mine", ".git", ".staging-x-0123456789ABCDEF", "staging-x-0123456789abcdef", ".lock"):
        assert not is_leftover(name)


@pytest.mark.parametrize("name", ["a", "best-val_loss", "best-val-error.top1", "0", "a" * 128])
def test_a_safe_name_is_unchanged(name):
    assert safe_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../../etc/passwd",
        "/etc/passwd",
        "a/b",
        "a b",
        "-a",
        ".hidden",
        "é",
        "a\x00b",
        "a\n",
        "a" * 129,
        "\ud800",
    ],
    ids=ascii,
)
def test_an_unsafe_name_becomes_safe(name):
    assert SAFE.fullmatch(safe_name(name))
    assert safe_name(name) != name


@settings(derandomize=True, deadline=None)
@given(st.text())
def test_every_string_becomes_a_safe_name(name):
    assert SAFE.fullmatch(safe_name(name))


@pytest.mark.parametrize(
    ("tag", "folder"),
    [
        ("best-val_loss", "best-val_loss"),
        ("best-val/loss", "best-val--loss"),
        ("best-test/val/loss", "best-test--val--loss"),
        ("best-val-loss", "best-val-loss"),
    ],
)
def test_the_folder_of_a_best_tag_is_readable(tag, folder):
    assert best_name(tag) == folder


def test_different_tags_have_different_folders():
    tags = [
        "a/b",
        "a--b",
        "a-b",
        "a/-b",
        "a-/b",
        "a---b",
        "a//b",
        "a----b",
        "a/",
        "a--",
        "a b",
        best_name("a--b"),
        best_name("a b"),
    ]
    assert len({best_name(f"best-{tag}") for tag in tags}) == len(tags)
    assert all(SAFE.fullmatch(best_name(f"best-{tag}")) for tag in tags)


def test_different_names_stay_different():
    names = ["a/b", "a-b", "a b", "a\\b", "a-b-", "a" * 200, "a" * 201, "A", "a", safe_name("a/b"), safe_name(safe_name("a/b"))]
    assert len({safe_name(name) for name in names}) == len(names)
