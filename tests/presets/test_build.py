from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from hookpoint import At, Callback, Every, Loop, build, errors, register
from hookpoint.callbacks import CheckpointConfig, EarlyStopping, ModelCheckpoint, ModelSaver
from hookpoint.cli.main import main


@register
class Mine(Callback):
    def __init__(self, size, *, word="none"):
        self.size, self.word = size, word

    def on_epoch_end(self): ...


def test_dicts_become_callbacks_in_order():
    stopping, saver, mine = build(
        [{"EarlyStopping": {"monitor": "val_loss", "patience": 2}}, "ModelSaver", {"Mine": {"size": 3}}]
    )
    assert (type(stopping), stopping.patience) == (EarlyStopping, 2)
    assert type(saver) is ModelSaver
    assert (mine.size, mine.word) == (3, "none")


@pytest.mark.parametrize(
    ("when", "schedule"),
    [
        ({"steps": 500}, Every(steps=500)),
        ({"Every": {"epochs": 2}}, Every(epochs=2)),
        ({"At": {"epochs": [1, 5]}}, At(epochs=[1, 5])),
        ([{"minutes": 10}, {"epochs": 1}], Every(minutes=10) | Every(epochs=1)),
    ],
)
def test_when_schedules_the_trigger(when, schedule):
    [saver] = build([{"ModelSaver": {}, "when": when}])
    assert repr(saver.schedule) == repr(schedule)


def test_targets_of_hydra_work_with_nested_ones():
    target = {"_target_": "hookpoint.callbacks.CheckpointConfig", "_args_": [10]}
    [saver] = build([{"_target_": "hookpoint.callbacks.ModelCheckpoint", "prefix": "x", "config": target}])
    [same] = build([{"ModelCheckpoint": {"prefix": "x", "config": {"CheckpointConfig": {"save_checkpoint_steps": 10}}}}])
    expected = ModelCheckpoint("x", config=CheckpointConfig(10))
    assert repr(saver.schedule) == repr(same.schedule) == repr(expected.schedule)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "c.toml",
            '[[callbacks]]\nEarlyStopping = {monitor = "val_loss"}\n[[callbacks]]\nModelSaver = {}\nwhen = {steps = 5}\n',
        ),
        ("c.toml", '[callbacks.EarlyStopping]\nmonitor = "val_loss"\n[callbacks.ModelSaver]\n'),
        ("c.yaml", "lr: 0.1\ncallbacks:\n- EarlyStopping: {monitor: val_loss}\n- ModelSaver:\n  when: {steps: 5}\n"),
        ("c.yml", "- EarlyStopping:\n    monitor: val_loss\n- ModelSaver\n"),
        ("c.json", json.dumps({"EarlyStopping": {"monitor": "val_loss"}, "ModelSaver": None})),
    ],
)
def test_files_are_read(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    stopping, saver = build(tmp_path / name)
    assert (type(stopping), type(saver)) == (EarlyStopping, ModelSaver)
    shown = CliRunner().invoke(main, ["explain", str(tmp_path / name)])
    assert shown.exit_code == 0
    assert "EarlyStopping" in shown.output


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ([{"EarlyStoping": {}}], r"^\[0\]: there is no callback 'EarlyStoping'.\n  write     EarlyStopping\n  register"),
        ([{"Xyzzy": {}}], r"there is no callback 'Xyzzy'.\n  known     ActivationStats, "),
        (
            {"callbacks": ["ModelSaver", {"EarlyStopping": {"monitor": "x", "patiense": 3}}]},
            r"^callbacks\[1\].EarlyStopping.patiense: EarlyStopping has no such argument. Did you mean patience\?\n  allowed",
        ),
        ({"Mine": {}}, r"^Mine: Mine needs size.\n  allowed   size, word"),
        ({"EarlyStopping": {"monitor": "val_loss", "patience": -1}}, r"^EarlyStopping: EarlyStopping: patience must be"),
        ([{"ModelSaver": {}, "when": {"stepps": 5}}], r"^\[0\].when: Every: unknown clock 'stepps'.\n  clocks    steps"),
        ([{"ModelSaver": {}, "when": 5}], r"^\[0\].when must be a mapping"),
        ([{"ModelSaver": {}, "MinSaver": {}}], r"^\[0\]: an entry must name exactly one class, got ModelSaver, MinSaver"),
        ([3], r"^\[0\]: an entry must be a class name or a mapping, got 3"),
        (3, r"^build: callbacks must be a list or a mapping, got int"),
        ([{"ModelSaver": [1]}], r"^\[0\].ModelSaver: arguments must be a mapping"),
        ([{"_target_": "nothing.Here"}], r"^\[0\]._target_: nothing.Here cannot be imported: No module named 'nothing'"),
        ([{"_target_": "hookpoint.callbacks.ModelSaver", "_partial_": True}], r"^\[0\]._partial_ is not supported"),
        ({"ModelSaver": {}, "when": {"steps": 1}}, r"`when` belongs in a list entry, next to a single class"),
    ],
)
def test_errors_name_the_key_and_what_is_allowed(config, text):
    with pytest.raises(errors.BadConfig, match=text):
        build(config)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("c.ini", "", "is not a configuration file"),
        ("c.toml", "x = ", "cannot be parsed"),
        ("c.yaml", "a: [", "cannot be parsed"),
        ("c.json", "{", "cannot be parsed"),
        ("c.yaml", "!!python/object/apply:os.system ['true']", "cannot be parsed"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path, name, text, expected):
    (tmp_path / name).write_text(text)
    with pytest.raises(errors.BadConfig, match=f"{name} {expected}"):
        build(tmp_path / name)
    with pytest.raises(errors.BadConfig, match="cannot be read"):
        build(tmp_path / "none.toml")


def test_explain_reports_what_is_wrong_in_a_file(tmp_path):
    (tmp_path / "c.toml").write_text("callbacks = ['EarlyStoping']")
    result = CliRunner().invoke(main, ["explain", str(tmp_path / "c.toml")])
    assert result.exit_code == 1
    assert "callbacks[0]: there is no callback 'EarlyStoping'" in result.output


def test_without_yaml_the_error_names_the_extra(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "yaml", None)
    (tmp_path / "c.yaml").write_text("[]")
    with pytest.raises(ImportError, match=r"pip install 'hookpoint\[config\]'"):
        build(tmp_path / "c.yaml")


def test_names_cannot_be_registered_twice():
    assert register(Mine) is Mine
    with pytest.raises(errors.BadConfig, match="Mine is already"):
        register(name="Mine")(EarlyStopping)
    with pytest.raises(errors.BadConfig, match="ModelSaver is already a hookpoint callback"):
        register(name="ModelSaver")(Mine)
    with pytest.raises(errors.BadConfig, match="3 is not a class"):
        register(3)


def test_a_run_trains_with_callbacks_from_a_configuration(tmp_path):
    with Loop(build([{"MinSaver": {"monitor_stat": "loss"}}]), workdir=tmp_path, extra_callbacks=[], monitors=[]) as run:
        for _ in run.epochs(1):
            run.log(loss=1.0)
    assert (tmp_path / "checkpoints" / "best-loss").is_dir()
