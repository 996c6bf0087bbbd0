from __future__ import annotations

import pytest

from hookpoint import Callback, Loop
from hookpoint.callbacks import JSONWriter
from hookpoint.core.errors import BadArgument


@pytest.mark.parametrize("seconds", [0, -1, None, "600", True, float("nan")])
def test_wait_seconds_must_be_a_positive_number(seconds):
    with pytest.raises(BadArgument, match=r"Loop: wait_seconds must be a number > 0, got"):
        Loop(wait_seconds=seconds)


@pytest.mark.parametrize("resume", [True, False, None])
def test_resume_must_be_a_string_or_a_path(resume, tmp_path):
    with pytest.raises(
        BadArgument, match=rf'^resume must be a string or a path, got {resume}\.\n  choose    "auto", "never", '
    ):
        Loop(workdir=tmp_path, resume=resume)


def test_a_single_monitor_needs_no_list(tmp_path):
    with Loop(extra_callbacks=OnlyOne(), monitors=JSONWriter(), workdir=tmp_path) as run:
        assert [type(callback) for callback in run.callbacks.values()] == [OnlyOne, JSONWriter]


class OnlyOne(Callback):
    def on_run_end(self): ...
