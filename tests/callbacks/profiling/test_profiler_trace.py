from __future__ import annotations

import gzip
import json
import pickle
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from hookpoint import Every, Loop, Runner, on
from hookpoint.callbacks import JSONWriter, ModelSaver, ProfilerTrace
from hookpoint.callbacks.profiling import _torch_profile
from hookpoint.callbacks.profiling._torch_profile import TorchProfile


@pytest.fixture(autouse=True)
def the_profiler_is_free():
    yield
    assert not TorchProfile.is_taken()


def trained(workdir, *callbacks, epochs=2, batches=6, **options):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"extra_callbacks": [], "monitors": [], **options}
    runner = Runner(model, optimizer, nn.CrossEntropyLoss(), callbacks=callbacks, workdir=workdir, device="cpu", **given)
    data = torch.randn(4 * batches, 3), torch.randint(0, 2, (4 * batches,))
    return runner.fit(data, epochs=epochs, batch_size=4)


def files(workdir):
    return sorted(path.name for path in (workdir / "profile").iterdir()) if (workdir / "profile").exists() else []


def operations(workdir, name):
    path = workdir / "profile" / name
    words = gzip.decompress(path.read_bytes()) if name.endswith(".gz") else path.read_bytes()
    return [event["name"] for event in json.loads(words)["traceEvents"] if event.get("cat") == "cpu_op"]


def test_the_given_steps_are_recorded_and_the_slowest_operations_listed(tmp_path, capsys):
    trained(tmp_path, ProfilerTrace(wait=3, warmup=2, steps=2, rows=4), JSONWriter())
    assert files(tmp_path) == ["trace-step-00000005.json"]
    assert operations(tmp_path, "trace-step-00000005.json").count("aten::cross_entropy_loss") == 2
    said = capsys.readouterr().err.splitlines()
    head = next(number for number, line in enumerate(said) if line.startswith("profile of steps 6 to 7: "))
    assert said[head + 1].split() == ["operation", "own", "cpu", "time", "share", "calls"]
    assert sum("%" in line and " ms " in line for line in said[head + 2 :]) == 4
    (event,) = [line for line in (tmp_path / "events.jsonl").read_text().splitlines() if "profile" in line]
    assert "profile/trace-step-00000005.json" in event


def test_a_compressed_trace_is_recorded_at_a_step(tmp_path):
    trained(tmp_path, ProfilerTrace(at=8, steps=3, compress=True, rows=0))
    assert files(tmp_path) == ["trace-step-00000008.json.gz"]
    assert operations(tmp_path, "trace-step-00000008.json.gz").count("aten::cross_entropy_loss") == 3


@pytest.mark.parametrize(("given", "first"), [({"at": 1000}, 1000), ({"wait": 11}, 13), ({"at": 12}, 12), ({"wait": 10}, 12)])
def test_a_run_that_ends_before_the_recording_begins_warns(tmp_path, caplog, given, first):
    trained(tmp_path, ProfilerTrace(**given))
    assert files(tmp_path) == []
    assert caplog.messages == [
        f"ProfilerTrace recorded nothing: the run ended at step 12, and the recording begins after step {first}"
    ]


def test_a_finished_run_that_is_started_again_does_not_warn(tmp_path, caplog):
    for _ in range(2):
        trained(tmp_path, ModelSaver(), ProfilerTrace(at=2, steps=1))
    assert files(tmp_path) == ["trace-step-00000002.json"]
    assert caplog.messages == []


def test_the_first_step_can_be_recorded(tmp_path):
    trained(tmp_path, ProfilerTrace(at=0, steps=1))
    assert operations(tmp_path, "trace-step-00000000.json").count("aten::cross_entropy_loss") == 1


def test_steps_are_optimizer_steps(tmp_path):
    trained(tmp_path, ProfilerTrace(at=1, steps=2), accumulate=2)
    assert operations(tmp_path, "trace-step-00000001.json").count("aten::cross_entropy_loss") == 4


def test_shapes_memory_and_stacks_are_recorded_if_requested(tmp_path):
    trained(tmp_path, ProfilerTrace(at=1, steps=1, shapes=True, memory=True, stacks=True))
    events = json.loads((tmp_path / "profile" / "trace-step-00000001.json").read_text())["traceEvents"]
    assert any("Input Dims" in event.get("args", {}) for event in events)
    assert any(event["name"] == "[memory]" for event in events)


def test_your_own_loop_is_recorded(tmp_path):
    with Loop([ProfilerTrace(at=1, steps=2, warmup=1)], workdir=tmp_path) as run:
        for _ in run.batches(range(5)):
            torch.ones(3).cumsum(0)
    assert operations(tmp_path, "trace-step-00000001.json").count("aten::cumsum") == 2


def test_a_run_that_ends_early_writes_the_recorded_steps(tmp_path):
    trained(tmp_path, ProfilerTrace(at=10, steps=100))
    assert operations(tmp_path, "trace-step-00000010.json").count("aten::cross_entropy_loss") == 2


@pytest.mark.parametrize("step", [2, 5], ids=["warming up", "recording"])
def test_an_exception_stops_the_profiler(tmp_path, step):
    @on("on_backward_begin")
    def fails(run):
        if run.step == step:
            raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        trained(tmp_path, ProfilerTrace(at=4, warmup=3, steps=5), fails)
    assert files(tmp_path) == (["trace-step-00000004.json"] if step == 5 else [])


def test_a_window_that_is_never_reached_writes_nothing(tmp_path):
    trained(tmp_path, ProfilerTrace(at=1000))
    assert files(tmp_path) == []


def test_after_a_resume_at_is_not_repeated_and_wait_starts_over(tmp_path):
    @on("on_train_iter_end")
    def fails(run):
        if run.step == 7:
            raise ValueError("cut off")

    saver = ModelSaver().when(Every(steps=6))
    with pytest.raises(ValueError, match="cut off"):
        trained(tmp_path, saver, ProfilerTrace(at=2, steps=1), fails)
    assert files(tmp_path) == ["trace-step-00000002.json"]
    trained(tmp_path, saver, ProfilerTrace(at=2, steps=1), ProfilerTrace(wait=1, warmup=1, steps=1, name="waits"))
    assert files(tmp_path) == ["trace-step-00000002.json", "trace-step-00000008.json"]


def test_only_one_profiler_runs_at_a_time(tmp_path, caplog):
    trained(tmp_path, ProfilerTrace(at=2, steps=4), ProfilerTrace(at=3, steps=1, name="second"))
    assert files(tmp_path) == ["trace-step-00000002.json"]
    assert "second records nothing: torch's profiler is in use" in caplog.text
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as outer:
        trained(tmp_path / "outer", ProfilerTrace(at=2))
    assert files(tmp_path / "outer") == []
    assert len(outer.key_averages()) > 0


def test_several_profilers_can_run_one_after_the_other(tmp_path):
    trained(tmp_path, ProfilerTrace(at=2, steps=2, warmup=1), ProfilerTrace(at=8, steps=2, warmup=1))
    assert files(tmp_path) == ["trace-step-00000002.json", "trace-step-00000008.json"]


def test_a_failure_does_not_end_the_run(tmp_path, caplog):
    (tmp_path / "profile").write_text("in the way")
    run = trained(tmp_path, ProfilerTrace(at=2, steps=2))
    assert run.step == 12
    assert "ProfilerTrace failed at on_train_iter_end" in caplog.text


def test_a_profiler_that_cannot_start_is_reported_once(tmp_path, monkeypatch, caplog):
    def refuse(profile):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(torch.profiler.profile, "prepare_trace", refuse)
    run = trained(tmp_path, ProfilerTrace(at=2, steps=2))
    assert run.step == 12
    assert caplog.text.count("RuntimeError: no such luck; the run continues") == 1


def test_without_a_workdir_nothing_is_recorded_and_the_log_says_so(caplog):
    trained(None, ProfilerTrace(at=2, steps=2))
    assert "ProfilerTrace needs a workdir" in caplog.text


def test_an_instance_can_be_reused(tmp_path):
    callback = ProfilerTrace(wait=2, warmup=0, steps=1)
    for name in ("a", "b"):
        trained(tmp_path / name, callback)
        assert files(tmp_path / name) == ["trace-step-00000002.json"]
    assert pickle.loads(pickle.dumps(callback)).wait == 2


def test_training_is_bitwise_the_same_as_without_a_profiler(tmp_path):
    with_it = trained(tmp_path / "a", ProfilerTrace(at=1))
    without = trained(tmp_path / "b")
    for one, other in zip(with_it.model.parameters(), without.model.parameters(), strict=True):
        assert torch.equal(one, other)


# Arguments and phases


@pytest.mark.parametrize("bad", [{"wait": -1}, {"at": -1}, {"warmup": -1}, {"steps": 0}, {"rows": 1.5}])
def test_invalid_numbers_raise(bad):
    with pytest.raises(ValueError, match=r"ProfilerTrace: .* must be an integer"):
        ProfilerTrace(**bad)


def test_wait_and_at_together_raise():
    with pytest.raises(ValueError, match=r"ProfilerTrace: wait=1 and at=2 are mutually exclusive\.\n  give +one of them"):
        ProfilerTrace(wait=1, at=2)


@pytest.mark.parametrize(
    ("options", "first", "phases"),
    [
        ({"at": 3, "warmup": 1, "steps": 2}, 0, "off off warmup record record over over"),
        ({"at": 0, "warmup": 5, "steps": 1}, 0, "record over"),
        ({"at": 3, "warmup": 1, "steps": 2}, 4, "record over"),
        ({"at": 3, "warmup": 1, "steps": 2}, 9, "over over"),
        ({"wait": 1, "warmup": 1, "steps": 1}, 7, "off warmup record over"),
    ],
)
def test_each_step_has_its_phase_of_the_profile(options, first, phases, monkeypatch, tmp_path):
    class Profile:
        is_recording = False

        def __init__(self, options):
            profiles.append(self)

        def is_taken():
            return False

        def warm_up(self):
            done[-1] = "warmup"

        def record(self):
            self.is_recording = True

        def stop(self):
            self.is_recording = False

    profiles, done = [], []
    monkeypatch.setattr(_torch_profile, "TorchProfile", Profile)
    callback, run = ProfilerTrace(**options), SimpleNamespace(workdir=tmp_path, step=first)
    callback.on_run_begin(run)
    for run.step in range(first, first + len(phases.split())):
        done.append("over" if callback._record_at is not None and run.step >= callback._record_at else "off")
        callback.on_train_iter_begin(run)
        done[-1] = "record" if profiles and profiles[0].is_recording else done[-1]
    assert " ".join(done) == phases
