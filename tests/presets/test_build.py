from __future__ import annotations

import json
from collections import UserList
from pathlib import Path

import pytest
from click.testing import CliRunner

from hookpoint import At, Callback, Every, Loop, Runner, build, errors, register
from hookpoint.callbacks import CheckpointConfig, EarlyStopping, ModelCheckpoint, ModelSaver
from hookpoint.cli.main import main


@register
class Mine(Callback):
    def __init__(self, size, *, word="none"):
        self.size, self.word = size, word

    @classmethod
    def sized(cls):
        return cls(7)

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
def test_when_sets_the_schedule_of_the_trigger(when, schedule):
    [saver] = build([{"ModelSaver": {}, "when": when}])
    assert repr(saver.schedule) == repr(schedule)


ES = {"_target_": "hookpoint.callbacks.EarlyStopping", "monitor": "val_loss"}


@pytest.mark.parametrize(
    "config",
    [
        ES,
        {"es": ES},
        {"callbacks": ES},
        {"callbacks": {"es": ES}},
        UserList([ES]),
        [{**ES, "_convert_": "all", "_recursive_": True, "_partial_": False}],
    ],
)
def test_hydra_layouts_are_accepted(config):
    [stopping] = build(config)
    assert (type(stopping), stopping.monitor) == (EarlyStopping, "val_loss")


def test_hydra_flags_apply_to_arguments():
    keeping = {"_target_": "hookpoint.callbacks.CheckpointConfig"}
    [mine] = build([{"Mine": {"size": {**keeping, "_partial_": True}}}])
    assert isinstance(mine.size(10), CheckpointConfig)
    [mine] = build([{"_target_": f"{__name__}.Mine", "size": keeping, "_recursive_": False}])
    assert mine.size == keeping


def make_mine():
    return Mine(3)


def test_a_target_may_be_a_function_or_a_method_of_a_class():
    mine, other = build([{"_target_": f"{__name__}.make_mine"}, {"_target_": f"{__name__}.Mine.sized"}])
    assert (mine.size, other.size) == (3, 7)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            [{"_target_": "os.system", "_args_": ["touch ran"]}],
            r"^\[0\]._target_ is <built-in function system>, which",
        ),
        ([{"os.mkdir": {"path": "ran"}}], r"^\[0\].os.mkdir is <built-in function mkdir>, which is not a callback"),
        (
            [{"_target_": "pathlib.Path", "_args_": ["x"]}],
            r"^\[0\]._target_ is <class 'pathlib.Path'>, which",
        ),
        (
            [{"_target_": "os.path.join", "_args_": ["x"]}],
            r"^\[0\] results in 'x', which is not a callback.\n  allowed ",
        ),
        ({"_target_": "os.path.join", "_args_": ["x"]}, r"^the entry results in 'x', which is not a callback"),
        (["CheckpointConfig"], r"^\[0\].CheckpointConfig is <class '.*CheckpointConfig'>, which is not a callback"),
    ],
)
def test_an_entry_that_does_not_build_a_callback_raises(tmp_path, monkeypatch, config, text):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.BadConfig, match=text):
        build(config)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("callbacks", "write"),
    [
        ("config.yaml", "hookpoint.build('config.yaml')"),
        (Path("config.yaml"), "hookpoint.build('config.yaml')"),
        ("ModelSaver", "hookpoint.build(['ModelSaver'])"),
        ([Mine(1), {"ModelSaver": {}}], "hookpoint.build([{'ModelSaver': {}}])"),
        ({"ModelSaver": {}}, "hookpoint.build([{'ModelSaver': {}}])"),
    ],
)
@pytest.mark.parametrize("made", [Loop, lambda callbacks: Runner(None, callbacks=callbacks)])
def test_a_config_passed_as_callbacks_raises_and_suggests_build(made, callbacks, write):
    with pytest.raises(errors.NotACallback) as caught:
        made(callbacks)
    assert str(caught.value).endswith(f" is a configuration, not a callback.\n  write     callbacks={write}")


def test_nested_hydra_targets_are_built():
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
        ([{"_target_": "hookpoint.callbacks.ModelSaver", "_partial_": True}], r"^\[0\]._partial_ must be false here"),
        ([{"_target_": "hookpoint.callbacks.ModelSaver", "_recursive_": 3}], r"^\[0\]._recursive_ must be one of True, False"),
        (
            [{"_target_": "hookpoint.callbacks.ModelSaver", "_mode_": 3}],
            r"^\[0\]._mode_ is not supported.\n  known ",
        ),
        (
            [{"_target_": "os.path.sep"}],
            r"^\[0\]._target_: os.path.sep is neither a class nor a function.\n  give",
        ),
        ({"_target_": "hookpoint.callbacks.EarlyStopping", "patiense": 1}, r"^patiense: EarlyStopping has no such argument"),
        ({"es": {"_target_": "hookpoint.callbacks.MinSavr"}}, r"^es._target_: hookpoint.callbacks.MinSavr cannot be imported"),
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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "c.yaml: the file describes no callbacks.\n  add       callbacks: followed by a list"),
        ("3", "c.yaml: the file describes no callbacks.\n  add       callbacks: "),
        (
            "lr: 0.1\nmodel: {x: 1}",
            "c.yaml: the file has neither the key `callbacks` nor the name of a callback, only lr, m",
        ),
        ("callbacks: 3", "c.yaml: callbacks must be a list or a mapping, got int."),
        ("EarlyStoping: {}", "c.yaml: there is no callback 'EarlyStoping'.\n  write     EarlyStopping"),
        ("EarlyStopping: {patiense: 1}", "c.yaml: EarlyStopping.patiense: EarlyStopping has no such argument."),
        ("- EarlyStopping: {patiense: 1}", "c.yaml: [0].EarlyStopping.patiense: EarlyStopping has no such argument."),
        ("ModelSaver: {}\nwhen: {steps: 1}", "c.yaml: `when` belongs in a list entry"),
    ],
)
def test_errors_in_a_file_name_the_file_and_the_key(tmp_path, monkeypatch, text, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(errors.BadConfig) as caught:
        build("c.yaml")
    assert str(caught.value).startswith(expected)


def test_explain_reports_the_error_in_a_file(tmp_path):
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
