from __future__ import annotations

import contextlib
import gc
import threading
import weakref

import numpy
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hookpoint import Callback, Every, Loop, Runner
from hookpoint.callbacks import ModelSaver, SummaryCollector, TFEventWriter
from hookpoint.callbacks.summaries.summary_collector import FIRST, CollectedData, selected
from hookpoint.core.errors import BadLoop


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 2, 3)
        self.norm = torch.nn.BatchNorm2d(2)
        self.drop = torch.nn.Dropout()
        self.head = torch.nn.Linear(2 * 6 * 6, 3)

    def forward(self, x):
        return self.head(self.drop(self.norm(self.conv(x))).flatten(1))


PARAMETERS = ["conv.weight", "conv.bias", "norm.weight", "norm.bias", "head.weight", "head.bias"]


class Monitor(Callback):
    def __init__(self):
        self.rows = []

    def on_records(self, records):
        for record in records:
            if record.kind != "event":
                self.rows += [(record.kind, record.step, name, value) for name, value in record.values.items()]

    def of(self, kind, name=None):
        return [(step, value) for what, step, called, value in self.rows if what == kind and name in (None, called)]

    def names(self, kind):
        return list(dict.fromkeys(called for what, _, called, _ in self.rows if what == kind))


def data(batches=6, size=4):
    numbers = torch.Generator().manual_seed(0)
    return [
        (torch.rand(size, 1, 8, 8, generator=numbers), torch.randint(0, 3, (size,), generator=numbers)) for _ in range(batches)
    ]


def make(callbacks, *, monitors=(), model=None, **given):
    torch.manual_seed(0)
    model = Net() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"extra_callbacks": [], "monitors": list(monitors), "log_every": 3, **given}
    return Runner(model, optimizer, torch.nn.CrossEntropyLoss(), callbacks=callbacks, **given)


def own_loop(callbacks, batches, *, model=None, body=None, **given):
    torch.manual_seed(0)
    model = Net() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"model": model, "optimizer": optimizer, "extra_callbacks": [], "monitors": [], **given}
    with Loop(callbacks, **given) as run:
        for _ in run.epochs(1):
            for x, y in run.batches(batches):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(x), y)
                loss.backward()
                if body is not None:
                    body(model)
                optimizer.step()
                run.log(loss=loss)
    return run


def read(workdir):
    guidance = {"scalars": 0, "images": 0, "histograms": 0, "tensors": 0}
    return EventAccumulator(str(workdir / "tensorboard"), size_guidance=guidance).Reload()


def steps(events):
    return [event.step for event in events]


# Contents of TensorBoard files


def check_events(events, collected):
    assert steps(events.Scalars("loss/auto")) == collected
    assert [event.value for event in events.Scalars("learning_rate/auto")] == pytest.approx([0.1] * len(collected))
    for kind in ("weights", "gradients"):
        for name in PARAMETERS[:5]:
            assert steps(events.Histograms(f"{kind}/{name}")) == collected
    assert f"weights/{PARAMETERS[5]}" not in events.Tags()["histograms"]
    assert events.Histograms("weights/head.weight")[0].histogram_value.num == 3 * 72
    (image,) = events.Images("input")
    assert image.width * image.height == 4 * 8 * 8
    (words,) = events.Tensors("graph/text_summary")
    assert b"(conv): Conv2d(1, 2" in words.tensor_proto.string_val[0]
    assert any("Linear[head]" in node.name for node in events.Graph().node)


def test_tensorboard_reads_the_data_of_a_runner(tmp_path):
    make([SummaryCollector(collect_freq=4)], monitors=[TFEventWriter()], workdir=tmp_path).fit(data(), epochs=2)
    check_events(read(tmp_path), [1, 4, 8, 12])


def test_tensorboard_reads_the_data_of_your_own_loop(tmp_path):
    own_loop([SummaryCollector(collect_freq=4)], data(9), monitors=[TFEventWriter()], workdir=tmp_path)
    check_events(read(tmp_path), [1, 4, 8])


# Values


def test_scalars_are_those_of_the_step():
    monitor, seen = Monitor(), []

    class Sees(Callback):
        def on_train_iter_end(self, run):
            seen.append(run.loss.item())

    make([SummaryCollector(collect_freq=2), Sees()], monitors=[monitor]).fit(data(), epochs=1)
    found = [(step, float(value)) for step, value in monitor.of("scalars", "loss/auto")]
    assert found == [(step, pytest.approx(seen[step - 1])) for step in (1, 2, 4, 6)]


@pytest.mark.parametrize(
    ("loss", "value"),
    [
        (torch.tensor(0.5), 0.5),
        (torch.tensor([0.25, 0.75]), 0.5),
        ((torch.tensor(0.5), torch.tensor(9.0)), 0.5),
        ({"a": 0.5, "b": 9.0}, 0.5),
        (0.5, 0.5),
    ],
    ids=["tensor", "several", "tuple", "dict", "float"],
)
def test_losses_of_all_kinds_are_collected(loss, value):
    monitor = Monitor()
    with Loop([SummaryCollector()], extra_callbacks=[], monitors=[monitor]) as run:
        for _ in run.batches([1]):
            run.loss = loss
    assert [(step, float(found)) for step, found in monitor.of("scalars", "loss/auto")] == [(1, value)]


def test_weights_are_taken_after_the_step_and_gradients_before_it():
    monitor, weights, gradients = Monitor(), [], []

    def sees(model):
        gradients.append(model.conv.weight.grad.clone())

    class Sees(Callback):
        def on_train_iter_end(self, run):
            weights.append(run.model.conv.weight.detach().clone())

    own_loop([SummaryCollector(collect_freq=3), Sees()], data(), body=sees, monitors=[monitor])
    for kind, seen in (("weights", weights), ("gradients", gradients)):
        found = monitor.of("histogram", f"{kind}/conv.weight")
        assert [step for step, _ in found] == [1, 3, 6]
        for step, values in found:
            assert (numpy.asarray(values) == seen[step - 1].numpy()).all()


def test_regular_expressions_select_parameters():
    monitor = Monitor()
    chosen = {"histogram_regular": "bias$", "gradient_regular": "^head"}
    make([SummaryCollector(collect_specified_data=chosen)], monitors=[monitor]).fit(data(2), epochs=1)
    assert monitor.names("histogram") == [
        *(f"weights/{name}" for name in PARAMETERS if name.endswith("bias")),
        "gradients/head.weight",
        "gradients/head.bias",
    ]


def test_without_the_default_action_only_specified_data_is_collected():
    monitor = Monitor()
    collector = SummaryCollector(collect_specified_data={"collect_metric": True}, keep_default_action=False)
    own_loop([collector], data(2), monitors=[monitor])
    assert monitor.names("histogram") + monitor.names("image") + monitor.names("text") == []
    assert {"loss/auto", "learning_rate/auto"} <= set(monitor.names("scalars"))


def test_an_accumulated_step_is_collected_once():
    monitor = Monitor()
    make([SummaryCollector(collect_freq=2)], monitors=[monitor], accumulate=3).fit(data(12), epochs=1)
    for name in ("weights/conv.weight", "gradients/conv.weight"):
        assert [step for step, _ in monitor.of("histogram", name)] == [1, 2, 4]


def test_a_parameter_without_a_gradient_has_no_gradient_histogram():
    model, monitor = Net(), Monitor()
    model.conv.weight.requires_grad_(False)
    make([SummaryCollector()], monitors=[monitor], model=model).fit(data(1), epochs=1)
    assert "weights/conv.weight" in monitor.names("histogram")
    assert "gradients/conv.weight" not in monitor.names("histogram")
    assert "gradients/conv.bias" in monitor.names("histogram")


@pytest.mark.parametrize("fused", [False, True])
def test_scaled_gradients_are_collected_without_their_scale(fused):
    monitor, model = Monitor(), Net()
    optimizer = torch.optim.Adam(model.parameters(), fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with Loop([SummaryCollector()], model=model, optimizer=optimizer, extra_callbacks=[], monitors=[monitor]) as run:
        for x, y in run.batches(data(1)):
            scaler.scale(torch.nn.functional.cross_entropy(model(x), y)).backward()
            seen = model.head.weight.grad / 1024
            scaler.step(optimizer)
    ((_, values),) = monitor.of("histogram", "gradients/head.weight")
    assert (numpy.asarray(values) == seen.numpy()).all()


def test_nonfinite_weights_do_not_stop_the_writer(tmp_path, caplog):
    def spoils(model):
        with torch.no_grad():
            model.conv.bias.fill_(torch.nan)
            model.conv.weight[0] = torch.inf

    freq = SummaryCollector(collect_freq=1, collect_specified_data={"collect_graph": False})
    own_loop([freq], data(5), body=spoils, monitors=[TFEventWriter()], workdir=tmp_path)
    events = read(tmp_path)
    assert "weights/conv.bias" not in events.Tags()["histograms"]
    assert events.Histograms("weights/head.weight")[0].histogram_value.num == 3 * 72
    assert steps(events.Scalars("loss/auto")) == [1, 2, 3, 4, 5]
    assert caplog.messages == []


# Side effects


def test_training_is_bitwise_the_same_with_a_collector():
    results = []
    for collectors in ([], [SummaryCollector(collect_freq=2)]):
        runner = make(collectors, monitors=[Monitor()])
        runner.model.norm.eval()
        runner.fit(data(), epochs=2)
        results.append((runner.model.state_dict(), torch.rand(3), [module.training for module in runner.model.modules()]))
    (first, drawn, modes), (second, drawn_too, modes_too) = results
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(drawn, drawn_too)
    assert modes == modes_too


@pytest.mark.parametrize("fails_at", [0, 1, 99])
def test_no_hook_and_no_batch_is_left_after_a_run(fails_at):
    class Fails(Callback):
        def on_train_iter_begin(self, run):
            if run.iteration == fails_at:
                raise RuntimeError("enough")

    collector, model, batches = SummaryCollector(collect_freq=1), Net(), data(3)
    seen = weakref.ref(batches[0][0])
    with contextlib.suppress(RuntimeError):
        make([collector, Fails()], model=model).fit(batches, epochs=1)
    assert not model._forward_pre_hooks
    del batches
    gc.collect()
    assert seen() is None
    assert collector._gradients == {}


def test_the_first_batch_is_released():
    batches = data(4)
    seen, is_gone = weakref.ref(batches[0][0]), []

    def body(model):
        gc.collect()
        is_gone.append(seen() is None)

    own_loop([SummaryCollector()], (batches.pop(0) for _ in range(4)), body=body)
    assert is_gone == [False, True, True, True]


def test_step_begins_are_observed_only_for_gradients():
    def listens(collector):
        return Loop([collector], extra_callbacks=[], monitors=[]).hooks.dispatch("on_step_begin", mode="train") is not None

    assert listens(SummaryCollector())
    assert not listens(SummaryCollector(collect_specified_data={"collect_metric": True}, keep_default_action=False))


def test_the_graph_is_traced_in_eval_mode():
    calls = []

    class Counts(Net):
        def forward(self, x):
            calls.append(self.training)
            return super().forward(x)

    make([SummaryCollector()], model=Counts()).fit(data(3), epochs=1)
    assert calls.count(True) == 3
    assert calls.count(False) > 0


def test_validation_before_training_is_not_taken_for_the_first_batch():
    monitor, model = Monitor(), Net()
    with Loop([SummaryCollector()], model=model, extra_callbacks=[], monitors=[monitor]) as run:
        for x, _ in run.batches(data(1, size=2), mode="val"):
            model(x)
        for x, _ in run.batches(data(1, size=4)):
            model(x)
    assert [numpy.asarray(image).shape for _, image in monitor.of("image")] == [(4, 8, 8, 1)]


# Missing data and errors


def test_a_model_that_cannot_be_traced_is_reported_once(caplog, capsys):
    class Odd(Net):
        def forward(self, x):
            if not self.training:
                raise RuntimeError("only in training\nand nowhere else")
            return super().forward(x)

    monitor = Monitor()
    make([SummaryCollector(collect_freq=1)], monitors=[monitor], model=Odd()).fit(data(3), epochs=1)
    assert caplog.messages == ["SummaryCollector: the model cannot be traced, so there is no graph: only in training"]
    assert monitor.of("text") == []
    assert len(monitor.of("histogram", "weights/conv.weight")) == 3
    assert capsys.readouterr().out == ""


def test_a_model_called_only_by_keyword_is_reported(caplog):
    class Keyword(Net):
        def forward(self, *, x):
            return super().forward(x)

    model = Keyword()
    with Loop([SummaryCollector()], model=model, extra_callbacks=[], monitors=[Monitor()]) as run:
        for x, _ in run.batches(data(2)):
            model(x=x)
    assert "the model cannot be traced, so there is no graph: it is called with x by keyword" in caplog.text


def test_without_an_optimizer_gradients_are_left_out_with_a_warning(caplog):
    monitor, model = Monitor(), Net()
    with Loop([SummaryCollector()], model=model, extra_callbacks=[], monitors=[monitor]) as run:
        for x, _ in run.batches(data(2)):
            model(x).sum().backward()
    assert caplog.messages == ["SummaryCollector collects no gradients: it needs optimizer=..."]
    assert monitor.names("histogram") == [f"weights/{name}" for name in PARAMETERS[:5]]


def test_without_a_model_scalars_are_collected():
    monitor = Monitor()
    with Loop([SummaryCollector(collect_freq=2)], extra_callbacks=[], monitors=[monitor], log_every=0) as run:
        for batch in run.batches([1.0, 2.0, 3.0, 4.0]):
            run.log(loss=batch)
    assert [step for step, _ in monitor.of("scalars", "loss/auto")] == [1, 2, 4]


def test_a_regular_expression_without_a_match_raises():
    with pytest.raises(BadLoop, match=r"'fc' matches no parameter, so no weights are collected\.\n  known     conv\.weight, "):
        make([SummaryCollector(collect_specified_data={"histogram_regular": "fc"})]).fit(data(1), epochs=1)


@pytest.mark.parametrize("freq", [0, -1, 1.5, True, "3"])
def test_an_invalid_collect_freq_raises(freq):
    with pytest.raises(ValueError, match="collect_freq must be an integer"):
        SummaryCollector(collect_freq=freq)


def test_a_summary_dir_argument_raises(tmp_path):
    with pytest.raises(ValueError, match="monitors write to the run's workdir") as caught:
        SummaryCollector("./summary")
    assert "leave     summary_dir out, and give the Runner or Loop workdir='./summary'" in str(caught.value)


# Resume


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_resumed_run_writes_everything_once(tmp_path, accumulate, cut_off):
    class Cuts(Callback):
        def on_train_iter_begin(self, run):
            if run.iteration == 5:
                raise cut_off

    def runner(*others):
        callbacks = [SummaryCollector(collect_freq=2), ModelSaver().when(Every(steps=2)), *others]
        return make(callbacks, monitors=[TFEventWriter()], workdir=tmp_path, accumulate=accumulate)

    with pytest.raises(cut_off):
        runner(Cuts()).fit(data(), epochs=2)
    runner().fit(data(), epochs=2)
    events = read(tmp_path)
    collected = [1, 2, 4, 6, 8, 10, 12] if accumulate == 1 else [1, 2, 4, 6]
    assert steps(events.Scalars("loss/auto")) == collected
    assert steps(events.Histograms("gradients/conv.weight")) == collected
    assert len(events.Images("input")) == 1
    assert events.Graph().node


def test_a_second_run_collects_from_scratch():
    collector = SummaryCollector()
    for _ in range(2):
        monitor = Monitor()
        make([collector], monitors=[monitor]).fit(data(1), epochs=1)
        assert len(monitor.of("text")) == len(monitor.of("image")) == 1


class DeviceRate(torch.Tensor):
    """A learning rate that is stored in a tensor on a device. Converting it to a float waits for the device."""

    is_cpu = False

    def __float__(self):
        self.waits.append(threading.current_thread().name)
        return float(self.as_subclass(torch.Tensor))


def test_a_learning_rate_on_a_device_is_collected_without_waiting_for_it():
    model, monitor, waits = torch.nn.Linear(1, 1), Monitor(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    rate = torch.tensor(0.5).as_subclass(DeviceRate)
    rate.waits, optimizer.param_groups[0]["lr"] = waits, rate
    with Loop(
        [SummaryCollector(collect_freq=2)], model=model, optimizer=optimizer, monitors=[monitor], extra_callbacks=[]
    ) as run:
        waits.clear()
        for _ in run.batches(range(4)):
            rate.mul_(0.5)  # as a scheduler does
            optimizer.step()
        assert waits == []
    rates = monitor.of("scalars", "learning_rate/auto")
    assert [(step, float(value)) for step, value in rates] == [(1, 0.25), (2, 0.125), (4, 0.03125)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_no_step_waits_for_a_gpu(tmp_path):
    chosen = {"collect_graph": False, "histogram_regular": "."}
    collector = SummaryCollector(collect_freq=2, collect_specified_data=chosen)
    runner = make([collector], monitors=[TFEventWriter()], workdir=tmp_path, device="cuda", strict_sync=True)
    runner.fit(data(), epochs=2)
    events = read(tmp_path)
    assert steps(events.Scalars("loss/auto")) == [1, 2, 4, 6, 8, 10, 12]
    assert steps(events.Histograms("gradients/conv.weight")) == [1, 2, 4, 6, 8, 10, 12]
    assert len(events.Images("input")) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_graph_of_a_model_on_a_gpu_is_traced(tmp_path):
    make([SummaryCollector()], monitors=[TFEventWriter()], workdir=tmp_path, device="cuda").fit(data(), epochs=1)
    assert any("Linear[head]" in node.name for node in read(tmp_path).Graph().node)


NAMES = [f"layer{number}.{kind}" for number in range(4) for kind in ("weight", "bias")]


def test_by_default_everything_is_collected():
    assert CollectedData.of(None, True) == CollectedData(True, True, True, FIRST, FIRST)
    assert CollectedData.of({}, True) == CollectedData.of(None, True)


def test_only_the_specified_settings_change():
    data = CollectedData.of({"collect_graph": False, "histogram_regular": "bias"}, True)
    assert data == CollectedData(True, False, True, "bias", FIRST)


def test_without_the_default_action_only_specified_data_is_set():
    data = CollectedData.of({"collect_metric": True, "gradient_regular": "^layer1"}, False)
    assert data == CollectedData(True, False, False, None, "^layer1")
    assert CollectedData.of(None, False) == CollectedData(False, False, False, None, None)


def test_the_first_five_or_the_matching_parameters_are_selected():
    assert selected(FIRST, NAMES) == NAMES[:5]
    assert selected("bias$", NAMES) == [f"layer{number}.bias" for number in range(4)]
    assert selected("weight|2", NAMES)[-2:] == ["layer2.bias", "layer3.weight"]


@pytest.mark.parametrize("key", ["collect_train_lineage", "collect_eval_lineage", "collect_dataset_graph", "collect_landscape"])
def test_unsupported_data_can_only_be_turned_off(key):
    assert CollectedData.of({key: False}, True) == CollectedData()
    with pytest.raises(ValueError, match=f"'{key}': True}} is not supported"):
        CollectedData.of({key: True}, True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"collect_metrics": True}, r"'collect_metrics': True} is unknown.\n  choose    collect_graph, collect_input_data"),
        ({"collect_metric": "yes"}, r"'collect_metric': 'yes'} must be True or False"),
        ({"histogram_regular": "("}, r"is not a regular expression: missing \)"),
        ({"gradient_regular": 5}, "is not a regular expression"),
    ],
)
def test_invalid_collected_data_raises(given, message):
    with pytest.raises(ValueError, match=message):
        CollectedData.of(given, True)
