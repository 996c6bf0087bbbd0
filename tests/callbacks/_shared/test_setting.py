from __future__ import annotations

from types import SimpleNamespace

import numpy
import pytest
import torch

from hookpoint import Callback, ObjAttrParam
from hookpoint.callbacks._shared.setting import Setting
from hookpoint.core.errors import BadValue, UnknownSetting
from hookpoint.core.loop.loop import Loop


class Writer(Callback):
    """Sets a setting at the beginning of the given epochs."""

    def __init__(self, param, values, **options):
        super().__init__(**options)
        self.setting = Setting(param)
        self.values = values

    def on_run_begin(self, run):
        self.setting.begin(run, self.name)

    def on_epoch_begin(self, run):
        if run.epoch in self.values:
            self.setting.set(run, self.values[run.epoch])


class Events(Callback):
    def __init__(self):
        self.settings = []

    def on_records(self, records):
        self.settings += [record.values["setting"] for record in records if "setting" in record.values]


def optimizer(*rates, kind=torch.optim.SGD, **options):
    groups = [{"params": [torch.zeros(1, requires_grad=True)], "lr": rate} for rate in rates]
    return kind(groups, lr=1.0, **options)


def rates(optimizer):
    return [group["lr"] for group in optimizer.param_groups]


@pytest.fixture
def run_with():
    """Return a function that starts a run with a setting and returns both."""
    loops = []

    def make(param, **given):
        setting = Setting(param)
        loop = Loop(**given)
        run = loop.__enter__()
        loops.append(loop)
        setting.begin(run, "me")
        return run, setting

    yield make
    for loop in reversed(loops):
        loop.__exit__(None, None, None)


def test_groups_are_set_in_proportion_to_their_rates(run_with):
    sgd = optimizer(1.0, 0.5)
    run, setting = run_with("learning_rate", optimizer=sgd)
    assert setting.set(run, 0.25)
    assert rates(sgd) == [0.25, 0.125]
    assert not setting.set(run, 0.25)


def test_the_learning_rate_is_adjusted_from_that_of_the_first_group(run_with):
    sgd = optimizer(1.0, 0.5, 1.0)
    run, setting = run_with("lr", optimizer=sgd)
    asked = []
    setting.adjust(run, lambda old: asked.append(old) or old / 2)
    assert rates(sgd) == [0.5, 0.25, 0.5]
    assert asked == [1.0]


def test_other_settings_are_adjusted_for_each_group_separately(run_with):
    first, second = optimizer(1.0, 1.0), optimizer(1.0)
    first.param_groups[0]["weight_decay"], second.param_groups[0]["weight_decay"] = 0.5, 1.0
    run, setting = run_with("weight_decay", optimizer={"first": first, "second": second})
    asked = []
    setting.adjust(run, lambda old: asked.append(old) or old / 2)
    assert [group["weight_decay"] for one in (first, second) for group in one.param_groups] == [0.25, 0.0, 0.5]
    assert asked == [0.5, 0.0, 1.0]
    setting.set(run, 0.75)
    assert [group["weight_decay"] for one in (first, second) for group in one.param_groups] == [0.75] * 3


def test_each_group_can_be_set_to_its_own_value(run_with):
    sgd = optimizer(1.0, 0.5)
    run, setting = run_with("lr", optimizer=sgd)
    assert setting.set_each(run, [0.5, 0.5])
    assert rates(sgd) == [0.5, 0.5]
    setting.set(run, 0.25)
    assert rates(sgd) == [0.25, 0.25]
    assert not setting.set_each(run, [0.25, 0.25])


def test_setting_the_value_of_a_tensor_again_is_not_a_change(run_with):
    adam = optimizer(torch.tensor(0.1), kind=torch.optim.Adam, capturable=False)
    run, setting = run_with("lr", optimizer=adam)
    assert not setting.set(run, 0.1)
    assert setting.set(run, 0.2)
    assert not setting.set(run, 0.2)


def test_a_single_group_can_be_set(run_with):
    sgd = optimizer(1.0, 0.5)
    run, setting = run_with("lr@1", optimizer=sgd)
    setting.adjust(run, lambda old: old * 8)
    assert rates(sgd) == [1.0, 4.0]


def test_returning_none_changes_nothing(run_with):
    sgd = optimizer(1.0)
    run, setting = run_with("lr", optimizer=sgd)
    assert not setting.adjust(run, lambda old: None)
    assert rates(sgd) == [1.0]


def test_a_tensor_learning_rate_is_changed_in_place(run_with):
    rate = torch.tensor(1.0)
    adam = optimizer(rate, kind=torch.optim.Adam, capturable=False)
    run, setting = run_with("learning_rate", optimizer=adam)
    setting.adjust(run, lambda old: old / 4)
    assert rates(adam)[0] is rate
    assert float(rate) == 0.25
    assert setting.value(run) == 0.25


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [
        (1.0, 2, 2.0),
        (1, 2.0, 2),
        (1, 0.5, 0.5),
        (1.0, numpy.float32(0.5), 0.5),
        (1.0, torch.tensor(0.5), 0.5),
        (False, True, True),
    ],
)
def test_a_new_value_keeps_the_type_of_the_previous_value(run_with, old, new, kept):
    thing = SimpleNamespace(value=old)
    run, setting = run_with(ObjAttrParam(thing, "value"))
    setting.set(run, new)
    assert (type(thing.value), thing.value) == (type(kept), kept)


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), "0.1", True, [0.1]])
def test_an_invalid_learning_rate_raises(run_with, value):
    sgd = optimizer(0.5)
    run, setting = run_with("learning_rate", optimizer=sgd)
    with pytest.raises(BadValue):
        setting.set(run, value)
    assert rates(sgd) == [0.5]


def test_an_attribute_may_be_negative(run_with):
    thing = SimpleNamespace(lr=1.0)
    run, setting = run_with(ObjAttrParam(thing, "lr"))
    setting.set(run, -1.0)
    assert thing.lr == -1.0


def test_an_unknown_setting_raises_before_training():
    with (
        pytest.raises(UnknownSetting, match="there is no setting 'learnin_rate'"),
        Loop([Writer("learnin_rate", {})], optimizer=optimizer(1.0)),
    ):
        pass


@pytest.mark.parametrize("param", ["", None, 3, object()])
def test_an_invalid_setting_raises(param):
    with pytest.raises(TypeError, match="is not a setting"):
        Setting(param)


def test_a_change_is_recorded_as_an_event_and_logged(caplog):
    caplog.set_level("INFO")
    events = Events()
    with Loop([Writer("learning_rate", {1: 0.5, 2: 0.5, 3: 0.25}, name="W"), events], optimizer=optimizer(1.0, 0.5)) as run:
        for _ in run.epochs(3):
            pass
    assert events.settings == [
        {"param": "learning_rate", "value": 0.5, "previous": 1.0, "by": "W"},
        {"param": "learning_rate", "value": 0.25, "previous": 0.5, "by": "W"},
    ]
    assert caplog.messages == [
        "learning_rate: 1.0 -> 0.5 (set by W)",
        "learning_rate: 0.5 -> 0.25 (set by W)",
    ]


# Conflicts between writers


def warnings_of(caplog, writers, epochs=4, **given):
    with Loop(writers, **given) as run:
        for _ in run.epochs(epochs):
            pass
    return [record.message for record in caplog.records if record.levelname == "WARNING"]


THING = SimpleNamespace(rate=1.0)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("learning_rate", "lr"),
        ("lr", "lr@1"),
        ("lr@0", "learning_rate@0"),
        (ObjAttrParam(THING, "rate"), ObjAttrParam(THING, "rate", name="other")),
    ],
)
def test_two_writers_of_the_same_setting_are_named_once(caplog, one, other):
    writers = [Writer(one, {1: 0.5, 3: 0.25}, name="A"), Writer(other, {2: 0.125, 4: 0.0625}, name="B")]
    said = warnings_of(caplog, writers, optimizer=optimizer(1.0, 1.0))
    assert said == [f"A and B both set {writers[1].setting.name}; the last write wins"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("lr@0", "lr@1"),
        ("lr", "momentum"),
        (ObjAttrParam(SimpleNamespace(rate=1.0), "rate"), ObjAttrParam(SimpleNamespace(rate=1.0), "rate")),
        (ObjAttrParam(SimpleNamespace(lr=1.0), "lr"), "lr"),
    ],
)
def test_writers_of_different_settings_do_not_conflict(caplog, one, other):
    writers = [Writer(one, {1: 0.5, 3: 0.25}, name="A"), Writer(other, {2: 0.125}, name="B")]
    assert warnings_of(caplog, writers, optimizer=optimizer(1.0, 1.0)) == []


@pytest.mark.parametrize(("one", "other", "is_said"), [("lr@1", "lr@critic", True), ("lr@actor", "lr@critic", False)])
def test_a_writer_of_a_group_and_a_writer_of_its_optimizer_conflict(caplog, one, other, is_said):
    optimizers = {"actor": optimizer(1.0), "critic": optimizer(1.0)}
    writers = [Writer(one, {1: 0.5}, name="A"), Writer(other, {2: 0.125}, name="B")]
    assert bool(warnings_of(caplog, writers, optimizer=optimizers)) == is_said


def test_a_second_writer_that_changes_nothing_does_not_conflict(caplog):
    writers = [Writer("lr", {1: 0.5}, name="A"), Writer("lr", {2: 0.5}, name="B")]
    assert warnings_of(caplog, writers, optimizer=optimizer(1.0)) == []


def test_the_next_run_warns_again(caplog):
    writers = [Writer("lr", {1: 0.5}, name="A"), Writer("lr", {2: 0.25}, name="B")]
    assert len(warnings_of(caplog, writers, optimizer=optimizer(1.0))) == 1
    assert len(warnings_of(caplog, writers, optimizer=optimizer(1.0))) == 2


def test_a_scheduler_counts_as_a_writer(caplog):
    sgd = optimizer(1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(sgd, 10)
    said = warnings_of(
        caplog, [Writer("lr", {}, name="A"), Writer("momentum", {}, name="B")], optimizer=sgd, lr_scheduler=scheduler
    )
    assert said == ["the lr_scheduler, StepLR and A both set lr; the last write wins"]


# State in a checkpoint


def test_a_value_that_no_optimizer_stores_is_in_the_state(run_with):
    thing = SimpleNamespace(dropout=0.5)
    run, setting = run_with(ObjAttrParam(thing, "dropout"))
    assert setting.state_dict() == {"has_written": False, "value": None}
    setting.set(run, 0.25)
    state = setting.state_dict()
    assert state == {"has_written": True, "value": 0.25}
    again = SimpleNamespace(dropout=0.5)
    fresh = Setting(ObjAttrParam(again, "dropout"))
    fresh.load_state_dict(state)
    assert again.dropout == 0.25
    assert fresh.state_dict() == state


def test_the_state_contains_the_current_value_whoever_set_it(run_with):
    thing = SimpleNamespace(dropout=0.5)
    run, setting = run_with(ObjAttrParam(thing, "dropout"))
    setting.set(run, 0.25)
    thing.dropout = 0.75
    assert setting.state_dict()["value"] == 0.75


def test_the_state_contains_the_value_of_a_registered_setting(run_with):
    thing = SimpleNamespace(dropout=0.5)

    class Registers(Callback):
        def on_setup(self, run):
            run.hyper.register(ObjAttrParam(thing, "dropout"))

    run, setting = run_with("dropout", callbacks=[Registers()])
    setting.set(run, 0.25)
    state = setting.state_dict()
    thing.dropout = 0.5
    run, again = run_with("dropout", callbacks=[Registers()])
    again.load_state_dict(state)
    assert thing.dropout == 0.25


def test_values_of_the_optimizer_are_not_in_the_state(run_with):
    sgd = optimizer(1.0)
    run, setting = run_with("lr", optimizer=sgd)
    setting.set(run, 0.25)
    state = setting.state_dict()
    assert state == {"has_written": True, "value": None}
    sgd.param_groups[0]["lr"] = 0.5
    setting.load_state_dict(state)
    assert rates(sgd) == [0.5]


def test_a_value_is_logged_unless_the_run_has_already_logged_it(run_with):
    sgd = optimizer(1.0)
    run, setting = run_with("learning_rate", optimizer=sgd)
    for epoch in run.epochs(2):
        if epoch == 2:
            run.log(learning_rate=7.0)
        setting.log(run)
    assert run.monitors.get_history("learning_rate") == [(0, 1.0), (0, 7.0)]
