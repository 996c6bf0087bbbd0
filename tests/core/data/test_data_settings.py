from __future__ import annotations

import pytest

from hookpoint.core.data.data_settings import DataSettings
from hookpoint.core.errors import BadValue, UnknownSetting
from hookpoint.core.run.hyper import Hyper


@pytest.fixture
def settings():
    return DataSettings({"strength": 0.0, "words": ["a", "b"]})


def test_settings_are_read_and_set_by_name(settings):
    settings["strength"] = 0.5
    assert settings["strength"] == 0.5
    assert list(settings) == list(settings.keys()) == ["strength", "words"]
    assert (len(settings), "words" in settings, "size" in settings) == (2, True, False)
    assert repr(settings) == "DataSettings({'strength': 0.5, 'words': ['a', 'b']})"
    assert not DataSettings()


@pytest.mark.parametrize(
    "act", [lambda one: one["size"], lambda one: one.__setitem__("size", 1), lambda one: one.param("size")]
)
def test_an_undeclared_setting_raises(settings, act):
    with pytest.raises(UnknownSetting) as caught:
        act(settings)
    assert str(caught.value) == (
        "there is no setting 'size'.\n  known     strength, words\n  declare   HookedLoader(..., settings={\"size\": ...})"
    )


class Odd(float):
    pass


@pytest.mark.parametrize("value", [object(), Odd(1.0), [1, {2}], {"a": object}])
def test_a_value_that_cannot_be_sent_or_saved_raises(settings, value):
    with pytest.raises(
        BadValue, match="setting 'strength': expected numbers, strings, True, False, None, or lists and mappings"
    ):
        settings["strength"] = value
    with pytest.raises(BadValue, match=r"float\(value\) or value\.tolist\(\)"):
        DataSettings({"strength": value})
    assert settings["strength"] == 0.0


def test_values_are_copied_when_they_are_set(settings):
    given = [1, (2, {"a": None})]
    settings["words"] = given
    given.append(3)
    assert settings["words"] == [1, (2, {"a": None})]


def test_a_pass_keeps_the_settings_it_began_with(settings):
    began = settings.begin_pass(trains=True)
    settings["strength"] = 1.0
    settings["words"].append("c")
    assert began == {"strength": 0.0, "words": ["a", "b"]}
    assert settings.begin_pass(trains=True) == {"strength": 1.0, "words": ["a", "b", "c"]}


def test_a_resumed_pass_has_the_settings_it_began_with(settings):
    settings.begin_pass(trains=True)
    settings["strength"] = 1.0
    again = DataSettings({"strength": -1.0, "words": []})
    again.load_state_dict(settings.state_dict())
    again.is_resumed = True
    assert again["strength"] == 1.0
    assert again.begin_pass(trains=True)["strength"] == 0.0
    assert again.begin_pass(trains=False)["strength"] == 1.0  # a validation in between is a separate pass
    assert again.begin_pass(trains=True)["strength"] == 0.0
    again.is_resumed = False
    assert again.begin_pass(trains=True)["strength"] == 1.0


def test_a_validation_does_not_change_the_training_pass(settings):
    settings.begin_pass(trains=True)
    settings["strength"] = 1.0
    settings.begin_pass(trains=False)
    assert settings.state_dict()["of_pass"]["strength"] == 0.0


def test_settings_added_or_removed_since_the_checkpoint_are_tolerated(settings):
    settings.begin_pass(trains=True)
    settings["strength"] = 0.5
    other = DataSettings({"strength": 0.0, "size": 8})
    other.load_state_dict(settings.state_dict())
    assert dict(other) == {"strength": 0.5, "size": 8}
    other.is_resumed = True
    assert other.begin_pass(trains=True)["size"] == 8


def test_a_setting_can_be_a_hyper_parameter(settings):
    hyper = Hyper()
    hyper.register(settings.param("strength"))
    hyper["strength"] = 0.25
    assert hyper["strength"] == settings["strength"] == 0.25


def test_begun_batches_keep_their_settings_after_a_resume():
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


def test_the_number_of_settings_kept_for_batches_is_bounded():
    settings = DataSettings({"strength": 0}, per_batch=True)
    settings.begin_pass(trains=True)
    for number in range(2500):
        settings["strength"] = number
        settings.of_batch(number, trains=True)
    assert 1000 <= len(settings.state_dict()["changes"]) <= 1002
    assert settings.of_batch(2499 - 900, trains=True) == {"strength": 2499 - 900}
