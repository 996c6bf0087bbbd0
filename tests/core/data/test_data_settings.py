from __future__ import annotations

import pytest

from hookpoint.core.data.data_settings import DataSettings
from hookpoint.core.errors import BadValue, UnknownSetting
from hookpoint.core.run.hyper import Hyper


@pytest.fixture
def settings():
    return DataSettings({"strength": 0.0, "words": ["a", "b"]})


def test_they_are_read_and_set_by_name(settings):
    settings["strength"] = 0.5
    assert settings["strength"] == 0.5
    assert list(settings) == list(settings.keys()) == ["strength", "words"]
    assert (len(settings), "words" in settings, "size" in settings) == (2, True, False)
    assert repr(settings) == "DataSettings({'strength': 0.5, 'words': ['a', 'b']})"
    assert not DataSettings()


@pytest.mark.parametrize(
    "act", [lambda one: one["size"], lambda one: one.__setitem__("size", 1), lambda one: one.param("size")]
)
def test_a_name_that_was_not_declared_is_refused(settings, act):
    with pytest.raises(UnknownSetting) as caught:
        act(settings)
    assert str(caught.value) == (
        "there is no setting 'size'.\n  known     strength, words\n  declare   HookedLoader(..., settings={\"size\": ...})"
    )


class Odd(float):
    pass


@pytest.mark.parametrize("value", [object(), Odd(1.0), [1, {2}], {"a": object}])
def test_what_could_not_be_sent_or_kept_is_refused(settings, value):
    with pytest.raises(
        BadValue, match="setting 'strength': expected numbers, strings, True, False, None, or lists and mappings"
    ):
        settings["strength"] = value
    with pytest.raises(BadValue, match=r"float\(value\) or value\.tolist\(\)"):
        DataSettings({"strength": value})
    assert settings["strength"] == 0.0


def test_values_are_copies(settings):
    given = [1, (2, {"a": None})]
    settings["words"] = given
    given.append(3)
    assert settings["words"] == [1, (2, {"a": None})]


def test_a_pass_keeps_what_it_began_with(settings):
    began = settings.begin_pass(trains=True)
    settings["strength"] = 1.0
    settings["words"].append("c")
    assert began == {"strength": 0.0, "words": ["a", "b"]}
    assert settings.begin_pass(trains=True) == {"strength": 1.0, "words": ["a", "b", "c"]}


def test_a_pass_that_is_gone_on_with_has_what_it_began_with(settings):
    settings.begin_pass(trains=True)
    settings["strength"] = 1.0
    again = DataSettings({"strength": -1.0, "words": []})
    again.load_state_dict(settings.state_dict())
    again.is_resumed = True
    assert again["strength"] == 1.0
    assert again.begin_pass(trains=True)["strength"] == 0.0
    assert again.begin_pass(trains=False)["strength"] == 1.0  # a validation in between is a pass of its own
    assert again.begin_pass(trains=True)["strength"] == 0.0
    again.is_resumed = False
    assert again.begin_pass(trains=True)["strength"] == 1.0


def test_a_validation_leaves_the_training_pass_alone(settings):
    settings.begin_pass(trains=True)
    settings["strength"] = 1.0
    settings.begin_pass(trains=False)
    assert settings.state_dict()["of_pass"]["strength"] == 0.0


def test_settings_that_came_or_went_since_the_checkpoint_do_no_harm(settings):
    settings.begin_pass(trains=True)
    settings["strength"] = 0.5
    other = DataSettings({"strength": 0.0, "size": 8})
    other.load_state_dict(settings.state_dict())
    assert dict(other) == {"strength": 0.5, "size": 8}
    other.is_resumed = True
    assert other.begin_pass(trains=True)["size"] == 8


def test_one_is_a_hyper_parameter(settings):
    hyper = Hyper()
    hyper.register(settings.param("strength"))
    hyper["strength"] = 0.25
    assert hyper["strength"] == settings["strength"] == 0.25


def test_what_batches_had_that_were_begun_is_kept():
    settings = DataSettings({"strength": 0}, per_batch=True)
    settings.begin_pass(trains=True)
    had = []
    for number in range(5):
        had.append(settings.of_batch(number, trains=True)["strength"])
        settings["strength"] = number // 2
    assert had == [0, 0, 0, 1, 1]
    again = DataSettings({"strength": -1}, per_batch=True)
    again.load_state_dict(settings.state_dict())
    again.is_resumed = True
    again.begin_pass(trains=True)
    again["strength"] = 7
    assert [again.of_batch(number, trains=True)["strength"] for number in range(2, 7)] == [0, 1, 1, 7, 7]
    assert again.of_batch(0, trains=False) == {"strength": 7}
    again.is_resumed = False
    again.begin_pass(trains=True)
    assert again.of_batch(0, trains=True) == {"strength": 7}


def test_what_is_kept_of_batches_is_bounded():
    settings = DataSettings({"strength": 0}, per_batch=True)
    settings.begin_pass(trains=True)
    for number in range(2500):
        settings["strength"] = number
        settings.of_batch(number, trains=True)
    assert 1000 <= len(settings.state_dict()["changes"]) <= 1002
    assert settings.of_batch(2499 - 900, trains=True) == {"strength": 2499 - 900}
