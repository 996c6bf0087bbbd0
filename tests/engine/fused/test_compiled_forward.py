"""`Runner(compile=...)`: forward and loss as one compiled function."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hookpoint import Callback, MainCallback, Runner
from hookpoint.callbacks import ModuleHooks
from hookpoint.core.errors import BadArgument, BadLoop
from hookpoint.engine.fused import _compiled_forward

EAGER = {"backend": "eager", "fullgraph": True}


@pytest.fixture
def fit():
    """Train a small network; return its weights and metrics."""

    def fit(model=None, *, callbacks=(), **options):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2)) if model is None else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        quiet = {"extra_callbacks": [], "monitors": []}
        runner = Runner(model, optimizer, nn.CrossEntropyLoss(), callbacks=callbacks, seed=1, **quiet, **options)
        data = torch.randn(36, 4, generator=torch.Generator().manual_seed(2)), torch.arange(36) % 2
        run = runner.fit(data, data, epochs=2, batch_size=8)
        predicted = torch.cat(runner.predict((data[0],), batch_size=8))
        return {**model.state_dict(), "predicted": predicted}, dict(run.metrics)

    return fit


@pytest.fixture
def compiled_calls():
    """Count the calls of compiled functions with a counting backend."""
    calls = []

    def backend(graph, inputs):
        def counted(*args):
            calls.append(graph)
            return graph(*args)

        return counted

    return calls, {"backend": backend, "fullgraph": True}


def assert_same(one, other):
    (weights, metrics), (other_weights, other_metrics) = one, other
    assert weights.keys() == other_weights.keys()
    assert all(torch.equal(weights[name], other_weights[name]) for name in weights)
    assert metrics == other_metrics


def test_compiled_training_validation_and_prediction_give_the_same_numbers(fit, compiled_calls):
    calls, options = compiled_calls
    plain = fit()
    assert_same(fit(compile=options), plain)
    assert len(calls) == 2 * 5 + 2 * 5 + 5  # batches of training, validation and prediction
    assert_same(fit(compile=options), plain)  # a second Runner in this process compiles its own function
    assert len(calls) == 2 * 25


def test_outputs_have_gradients_only_if_a_callback_could_use_them(fit):
    class Looks(Callback):
        def on_train_iter_end(self, run):
            seen.append(run.outputs.requires_grad)

    class Penalty(Looks):
        def on_backward_begin(self, run):
            run.loss = run.loss + run.outputs.square().mean()

    seen = []
    fit(callbacks=[Looks()], compile=EAGER)
    assert set(seen) == {False}
    assert_same(fit(callbacks=[Penalty()], compile=EAGER), fit(callbacks=[Penalty()]))


def test_hooks_are_called_while_they_exist(fit, compiled_calls):
    calls, options = compiled_calls
    hooked = []

    class Between(Callback):
        def on_train_iter_begin(self, run):
            if run.iteration == 2:
                self.handle = run.model[0].register_forward_hook(lambda *args: hooked.append(run.iteration))
            if run.iteration == 4:
                self.handle.remove()

    assert_same(fit(callbacks=[Between()], compile=options), fit())
    assert hooked == [2, 3]
    assert len(calls) == 25 - 2
    hooked.clear()
    fit(callbacks=[ModuleHooks("0", forward=lambda *args: hooked.append(1))], compile=options)
    assert len(hooked) == 25


def test_a_model_that_returns_its_losses_can_be_compiled(fit):
    class Losses(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x, y):
            outputs = self.layer(x)
            return {"first": outputs.square().mean(), "second": (outputs[:, 0] - y).square().mean()}

    def train(**options):
        torch.manual_seed(0)
        model = Losses()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        runner = Runner(model, optimizer, extra_callbacks=[], monitors=[], seed=1, **options)
        run = runner.fit((torch.ones(16, 4), torch.ones(16)), epochs=2, batch_size=8)
        return model.state_dict(), dict(run.metrics)

    assert_same(train(compile={"backend": "eager"}), train())


class OwnForward(MainCallback):
    def on_iter_forward(self, run):
        run.loss = run.model(run.batch[0]).sum()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"compile": "yes"},
            "compile must be True, False or a dict of torch.compile options, got 'yes'.\n  write     compile=True",
        ),
        ({"compile": {"bakend": "eager"}}, "compile: torch.compile has no option 'bakend'.\n  choose    backend, "),
        (
            {"compile": {"mode": "reduce-overhead"}},
            (
                "compile cannot use torch.compile's CUDA graphs: each batch would overwrite the values logged before it.\n"
                '  write     cuda_graph=True\n  choose    mode="max-autotune-no-cudagraphs" instead'
            ),
        ),
        (
            {"compile": EAGER, "main": OwnForward()},
            (
                "compile=True compiles the Runner's forward and loss, but OwnForward has its own forward.\n"
                "  write     torch.compile(...) around the computation in that forward\n  drop      compile=True instead"
            ),
        ),
        (
            {"compile": EAGER, "callbacks": [OwnForward()]},
            "compile=True compiles the Runner's forward and loss, but OwnForward has its own forward.",
        ),
    ],
)
def test_unsupported_compile_options_raise_before_training(options, text):
    model = nn.Linear(4, 2)
    with pytest.raises(BadArgument) as error:
        Runner(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), **options)
    assert str(error.value).startswith(text)


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(_compiled_forward.shutil, "which", lambda name: None)
    with pytest.raises(BadLoop) as error:
        _compiled_forward.compile_options(True, torch.device("cpu"))
    expected = (
        "compile=True needs a C++ compiler, and none was found.\n"
        "  install   g++ or clang++, or set the environment variable CXX\n  drop      compile=True instead"
    )
    assert str(error.value) == expected


def test_without_triton_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: False)
    with pytest.raises(BadLoop) as error:
        _compiled_forward.compile_options(True, torch.device("cuda"))
    expected = (
        "compile=True needs Triton, which is not installed or does not support this GPU.\n"
        "  run       pip install triton\n  drop      compile=True instead"
    )
    assert str(error.value) == expected


def test_compile_with_several_processes_raises():
    from hookpoint import DataParallel

    with pytest.raises(BadArgument) as error:
        _compiled_forward.compile_options(EAGER, torch.device("cpu"), DataParallel())
    expected = "compile=True supports one process; this run uses DataParallel.\n  write     Runner(torch.compile(model), ...)"
    assert str(error.value) == expected


def test_explain_mentions_module_hooks(fit):
    tables = []

    class Explains(Callback):
        def on_run_begin(self, run):
            tables.append(run.hooks.explain())

    fit(callbacks=[Explains()], compile=EAGER)
    assert tables[0].endswith("except while modules have hooks; uncompiled results may differ in the last bits")


def test_a_compiled_model_keeps_its_parameter_names(fit, tmp_path):
    plain = fit()
    assert_same(fit(compile=EAGER, workdir=tmp_path), plain)
    assert set(plain[0]) == {"0.weight", "0.bias", "3.weight", "3.bias", "predicted"}
