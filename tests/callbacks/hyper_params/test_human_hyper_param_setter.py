from __future__ import annotations

import logging
import math
import os
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hookpoint import Callback, Every, ObjAttrParam, on
from hookpoint.callbacks import HumanHyperParamSetter, LearningRateScheduler, ModelSaver, ScheduledHyperParamSetter
from hookpoint.callbacks.hyper_params import _hyper_file as hyper_file
from hookpoint.core.errors import BadLoop
from hookpoint.core.loop.loop import Loop


def sgd(rate=1.0, **options):
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=rate, **options)


class Events(Callback):
    def __init__(self):
        self.changes, self.refusals = [], []

    def on_records(self, records):
        for record in records:
            self.changes += [record.values["setting"]] if "setting" in record.values else []
            self.refusals += [record.values["setting_refused"]] if "setting_refused" in record.values else []


@pytest.fixture
def train_with_edits(rates_of_steps):
    """Run an epoch for each content; the file has that content when the epoch ends. Return the rates of the epochs."""

    def go(workdir, contents, *callbacks, **given):
        file = Path(workdir) / "hyper.txt"

        @on("on_train_epoch_end")
        def edit(run):
            content = contents[run.epoch - 1]
            if content is None:
                file.unlink(missing_ok=True)
            else:
                file.write_bytes(content if isinstance(content, bytes) else content.encode())

        setters = callbacks or [HumanHyperParamSetter("learning_rate")]
        return rates_of_steps([edit, *setters], epochs=len(contents), workdir=workdir, **given)

    return go


def test_a_line_sets_the_value_at_the_end_of_the_epoch(train_with_edits, tmp_path):
    assert train_with_edits(tmp_path, ["learning_rate:0.5\n", "learning_rate: 0.25\n", ""]) == [1.0, 0.5, 0.25]


def test_a_line_without_a_newline_is_read(train_with_edits, tmp_path):
    assert train_with_edits(tmp_path, ["learning_rate:0.5", ""]) == [1.0, 0.5]


def test_a_line_in_the_file_at_the_start_applies_from_the_start(train_with_edits, tmp_path):
    (tmp_path / "hyper.txt").write_text("lr:0.5\n")
    assert train_with_edits(tmp_path, ["lr:0.5\n", "lr:0.5\n"]) == [0.5, 0.5]


def test_without_a_line_the_value_stays(train_with_edits, tmp_path):
    assert train_with_edits(tmp_path, ["lr:0.5\n", "", None, "# lr:0.25\n", ""]) == [1.0, 0.5, 0.5, 0.5, 0.5]


def test_a_value_of_zero_is_applied(train_with_edits, tmp_path):
    assert train_with_edits(tmp_path, ["lr:0\n", ""]) == [1.0, 0.0]


def test_a_line_wins_over_other_callbacks_in_any_order(train_with_edits, tmp_path, caplog):
    human = HumanHyperParamSetter("learning_rate")
    table = ScheduledHyperParamSetter("learning_rate", [(1, 0.1), (2, 0.2)])
    function = LearningRateScheduler(lambda epoch: 0.3)
    assert train_with_edits(tmp_path, ["lr:0.5\n", "lr:0.5\n", ""], human, table, function) == [0.3, 0.5, 0.5]
    assert len([one for one in caplog.messages if "the last write wins" in one]) == 2  # each pair is named once


def test_a_conflict_with_a_schedule_warns_only_when_both_have_written(train_with_edits, tmp_path, caplog):
    callbacks = [ScheduledHyperParamSetter("learning_rate", [(1, 0.5)]), HumanHyperParamSetter("learning_rate")]
    train_with_edits(tmp_path, [None, None], *callbacks)
    assert caplog.messages == []
    train_with_edits(tmp_path, [None, None, "learning_rate:0.25\n"], *callbacks)
    both = "ScheduledHyperParamSetter(learning_rate) and HumanHyperParamSetter(learning_rate)"
    assert caplog.messages == [f"{both} both set learning_rate; the last write wins"]


def test_each_change_is_recorded_once(train_with_edits, tmp_path):
    events = Events()
    train_with_edits(tmp_path, ["lr:0.5\n", "lr:0.5\n", "lr:0.25\n"], HumanHyperParamSetter("learning_rate"), events)
    by = "HumanHyperParamSetter(learning_rate)"
    assert events.changes == [
        {"param": "learning_rate", "value": 0.5, "previous": 1.0, "by": by},
        {"param": "learning_rate", "value": 0.25, "previous": 0.5, "by": by},
    ]


def test_a_schedule_can_read_the_file_more_often(train_with_edits, tmp_path):
    @on("on_train_iter_end")
    def edit(run):
        (tmp_path / "hyper.txt").write_text(f"lr:{run.step}\n")

    human = HumanHyperParamSetter("lr").when(Every(steps=2))
    assert train_with_edits(tmp_path, [""], edit, human, batches=5) == [1.0, 1.0, 2.0, 2.0, 4.0]


def test_a_resumed_run_restores_the_value(train_with_edits, tmp_path, disk):
    train_with_edits(tmp_path, ["lr:0.5\n", ""], HumanHyperParamSetter("lr"), ModelSaver(), store=disk)
    (tmp_path / "hyper.txt").unlink()
    assert train_with_edits(tmp_path, [None] * 3, HumanHyperParamSetter("lr"), ModelSaver(), store=disk) == [0.5]


def test_a_resumed_run_restores_the_value_of_an_attribute(train_with_edits, tmp_path, disk):
    for epochs, expected in ((2, 0.25), (3, 0.25)):
        thing = SimpleNamespace(dropout=0.5)
        setter = HumanHyperParamSetter(ObjAttrParam(thing, "dropout"))
        train_with_edits(tmp_path, ["dropout:0.25\n", None, None][:epochs], setter, ModelSaver(), store=disk)
        assert thing.dropout == expected


def test_an_edit_between_two_runs_is_applied(train_with_edits, tmp_path, disk):
    train_with_edits(tmp_path, ["lr:0.5\n", ""], HumanHyperParamSetter("lr"), ModelSaver(), store=disk)
    (tmp_path / "hyper.txt").write_text("lr:0.125\n")
    assert train_with_edits(tmp_path, [None] * 3, HumanHyperParamSetter("lr"), ModelSaver(), store=disk) == [0.125]


# Several settings


def test_a_line_can_set_a_single_optimizer_or_group(tmp_path, caplog):
    optimizers = {"actor": sgd(1.0), "critic": sgd(0.5)}
    (tmp_path / "hyper.txt").write_text("learning_rate: 2.0\nlearning_rate@critic: 0.25\n")
    setters = [HumanHyperParamSetter("lr"), HumanHyperParamSetter("lr@critic")]
    with Loop(setters, optimizer=optimizers, workdir=tmp_path) as run:
        for epoch in run.epochs(3):
            assert [run.hyper[f"lr@{name}"] for name in optimizers] == ([2.0, 0.25] if epoch < 3 else [4.0, 0.5])
            if epoch == 2:
                (tmp_path / "hyper.txt").write_text("lr: 4.0\n")
    assert not [record.message for record in caplog.records if "hyper.txt" in record.message]


def test_several_setters_share_a_file(train_with_edits, tmp_path, caplog):
    optimizer = sgd(momentum=0.9)
    setters = [HumanHyperParamSetter("learning_rate"), HumanHyperParamSetter("momentum")]
    train_with_edits(tmp_path, ["learning_rate:0.5\nmomentum:0.25\nbatch_size:3\nwhat\n"], *setters, optimizer=optimizer)
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]) == (0.5, 0.25)
    assert caplog.messages == [
        "hyper.txt, line 4, has no colon: 'what'; write name:value",
        "hyper.txt, line 3, sets 'batch_size', which no callback reads; known names: learning_rate, momentum",
    ]


def test_setters_can_read_different_files(train_with_edits, tmp_path):
    optimizer = sgd(momentum=0.9)
    (tmp_path / "other.txt").write_text("momentum:0.25\n")
    train_with_edits(
        tmp_path, ["lr:0.5\n"], HumanHyperParamSetter("lr"), HumanHyperParamSetter("momentum", "other.txt"), optimizer=optimizer
    )
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]) == (0.5, 0.25)


def test_an_integer_stays_an_integer(train_with_edits, tmp_path):
    thing = SimpleNamespace(size=8)
    train_with_edits(tmp_path, ["size:16\n"], HumanHyperParamSetter(ObjAttrParam(thing, "size")))
    assert (type(thing.size), thing.size) == (int, 16)


# Problems


def test_an_invalid_line_is_reported_once_and_the_others_apply(train_with_edits, tmp_path, caplog):
    events = Events()
    content = "what is this\nlr:0.5\n"
    rates = train_with_edits(tmp_path, [content, content, content], HumanHyperParamSetter("learning_rate"), events)
    assert rates == [1.0, 0.5, 0.5]
    reason = "has no colon: 'what is this'; write name:value"
    assert caplog.messages == [f"hyper.txt, line 1, {reason}"]
    assert events.refusals == [{"file": "hyper.txt", "line": 1, "reason": reason}]


def test_a_problem_that_returns_is_reported_again(train_with_edits, tmp_path, caplog):
    train_with_edits(tmp_path, ["what\n", "", "what\n"])
    assert len(caplog.messages) == 2


def test_an_invalid_line_that_moves_is_not_reported_again(train_with_edits, tmp_path, caplog):
    train_with_edits(tmp_path, ["what\n", "# first\nwhat\n"])
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("value", ["-0.1", "nan", "inf", "1e999", "1e300"])
def test_an_invalid_learning_rate_is_rejected_and_the_last_valid_value_stays(train_with_edits, tmp_path, caplog, value):
    assert train_with_edits(tmp_path, ["lr:0.5\n", f"lr:{value}\n", f"lr:{value}\n"]) == [1.0, 0.5, 0.5]
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("hyper.txt, line 1, ")


def test_a_valid_line_above_a_rejected_one_applies(train_with_edits, tmp_path, caplog):
    assert train_with_edits(tmp_path, ["lr:0.5\nlearning_rate:-1\n", ""]) == [1.0, 0.5]
    assert caplog.messages == ["hyper.txt, line 2, was rejected: learning_rate must not be negative. The value is -1.0"]


def test_an_error_of_a_custom_setting_does_not_end_the_run(train_with_edits, tmp_path, caplog):
    class Picky:
        name = "picky"
        value = 0.5

        def get_value(self):
            return self.value

        def set_value(self, value):
            raise RuntimeError("not today.")

    train_with_edits(tmp_path, ["picky:0.25\n", "picky:0.25\n"], HumanHyperParamSetter(Picky()))
    assert caplog.messages == ["hyper.txt, line 1, was rejected: not today. The value is 0.25"]


def test_at_most_five_problems_are_listed(train_with_edits, tmp_path, caplog):
    train_with_edits(tmp_path, ["\n".join(f"bad {number}" for number in range(1000)) + "\n"])
    assert len(caplog.messages) == 6
    assert caplog.messages[-1] == "hyper.txt: 995 more problems are not shown"


def test_a_symbolic_link_is_reported_once(tmp_path, caplog):
    (tmp_path / "hyper.txt").symlink_to("/etc/passwd")

    def look(run):
        assert run.hyper["lr"] == 1.0

    with Loop([HumanHyperParamSetter("lr"), on("on_epoch_end")(look)], optimizer=sgd(), workdir=tmp_path) as run:
        for _ in run.epochs(3):
            pass
    assert caplog.messages == ["hyper.txt is a symbolic link"]


def test_a_workdir_is_required():
    loop = Loop([HumanHyperParamSetter("lr")], optimizer=sgd())
    with pytest.raises(BadLoop, match=r"^HumanHyperParamSetter\(lr\) needs a workdir"), loop:
        pass


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/passwd", "..\\x", "a\0b", None, 3])
def test_a_path_as_file_name_raises(name):
    with pytest.raises(ValueError, match="must be the name of a file"):
        HumanHyperParamSetter("lr", name)


# Arbitrary content in place of the file

VALID = st.floats(0, 10).map(lambda value: (f"learning_rate:{value!r}", value))
JUNK = st.one_of(
    st.sampled_from(
        [
            "learning_rate:nan",
            "learning_rate:inf",
            "learning_rate:-1",
            "learning_rate:",
            "learning_rate",
            "lr:1e999",
            "lr:-inf",
            "\0",
            "x:1",
        ]
    ).map(str.encode),
    st.binary(max_size=40).filter(lambda junk: b":" not in junk),
)


def put_directory(path):
    path.mkdir()


def put_fifo(path):
    os.mkfifo(path)


def put_link(path):
    path.symlink_to("/etc/hostname")


def put_dangling_link(path):
    path.symlink_to("/nowhere/at/all")


def put_large(path):
    path.write_bytes(b"learning_rate:0.125\n" * 600_000)


def put_nothing(path):
    pass


ODD = st.sampled_from([put_directory, put_fifo, put_link, put_dangling_link, put_large, put_nothing])


@st.composite
def files(draw):
    """Return a function that puts something in place of the file, and the value that applies then, or None."""
    if draw(st.integers(0, 9)) == 0:
        return draw(ODD), None
    lines, value = [], None
    for _ in range(draw(st.integers(0, 5))):
        if draw(st.booleans()):
            text, value = draw(VALID)
            lines.append(text.encode())
        else:
            lines.append(draw(JUNK))
    content = b"\n".join(lines)
    return (lambda path: path.write_bytes(content + b"\n")), value


def clear(path):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@settings(max_examples=3 * settings.default.max_examples, deadline=None)
@given(st.lists(files(), min_size=1, max_size=4))
def test_invalid_file_content_is_never_applied_and_never_raises(puts):
    logger, said = logging.getLogger("hookpoint"), []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logger.addHandler(handler)
    logger.propagate = False
    try:
        with tempfile.TemporaryDirectory() as workdir:
            path, optimizer, expected = Path(workdir) / "hyper.txt", sgd(), 1.0
            with Loop([HumanHyperParamSetter("learning_rate")], optimizer=optimizer, workdir=workdir) as run:
                for epoch in run.epochs(len(puts) + 1):
                    rate = optimizer.param_groups[0]["lr"]
                    assert math.isfinite(rate)
                    assert rate == expected
                    if epoch <= len(puts):
                        put, value = puts[epoch - 1]
                        clear(path)
                        put(path)
                        expected = expected if value is None else value
                    before = len(said)
                    run.fire("on_trigger")
                    run.fire("on_trigger")
                    assert len(set(said[before:])) == len(said[before:]), "a problem is reported once"
            clear(path)
    finally:
        logger.removeHandler(handler)
        logger.propagate = True


def test_the_size_limit_is_64_kib():
    assert hyper_file.MAX_BYTES == 65536
