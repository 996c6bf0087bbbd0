"""Functions are registered as PyTorch hooks on modules during a run or pass, and removed after it."""

from __future__ import annotations

import copy
import pickle
import re

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hookpoint import Callback, Loop, Runner
from hookpoint.callbacks import ModuleHooks
from hookpoint.core.errors import BadLoop

QUIET = {"extra_callbacks": [], "monitors": []}


class Net(nn.Module):
    """A small convolutional network."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU())
        self.head = nn.Linear(4 * 4 * 4, 3)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


class Words(nn.Module):
    """A small transformer. With padding it packs the batch in eval mode, even if it has hooks."""

    def __init__(self, batch_first=True, pads=False):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=pads)
        self.head = nn.Linear(8, 3)
        self.pads = pads

    def forward(self, x):
        return self.head(self.encoder(self.embed(x), src_key_padding_mask=x == 0 if self.pads else None).mean(1))


def images(number=3):
    torch.manual_seed(1)
    return [(torch.randn(4, 1, 8, 8), torch.randint(0, 3, (4,))) for _ in range(number)]


def sentences(number=3):
    torch.manual_seed(1)
    return [(torch.randint(1, 11, (4, 5)), torch.randint(0, 3, (4,))) for _ in range(number)]


def made(kind):
    torch.manual_seed(0)
    return kind()


def make(model, *callbacks, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Runner(model, optimizer, nn.CrossEntropyLoss(), callbacks=callbacks, **{**QUIET, "device": "cpu", **options})


def left(model):
    """Return the names of modules that still have hooks, with the kind of hook."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return [(name, kind) for name, module in model.named_modules() for kind in kinds if getattr(module, kind)]


def kept(value):
    value = value[0] if isinstance(value, tuple) else value
    return None if value is None else value.detach().clone()


class Seen:
    """Functions that record the values they are called with."""

    def __init__(self):
        self.calls = []

    def forward_pre(self, module, args, *, name):
        self.calls.append(("forward_pre", name, kept(args)))

    def forward(self, module, args, output, *, name):
        self.calls.append(("forward", name, kept(output)))

    def backward_pre(self, module, grad_output, *, name):
        self.calls.append(("backward_pre", name, kept(grad_output)))

    def backward(self, module, grad_input, grad_output, *, name):
        self.calls.append(("backward", name, kept(grad_output)))

    def callback(self, pattern, *kinds):
        return ModuleHooks(pattern, **{kind: getattr(self, kind) for kind in kinds})

    def by_hand(self, model, names, *kinds):
        methods = {"forward_pre": "forward_pre", "forward": "forward"}
        for name in names:
            module = model.get_submodule(name)
            for kind in kinds:
                register = getattr(module, f"register_{methods.get(kind, 'full_' + kind)}_hook")
                function = getattr(self, kind)
                register(lambda *given, function=function, name=name: function(*given, name=name))

    def __eq__(self, other):
        def same(one, its):
            return (one is None) == (its is None) and (one is None or torch.equal(one, its))

        pairs = zip(self.calls, other.calls, strict=True)
        return all(mine[:2] == its[:2] and same(mine[2], its[2]) for mine, its in pairs)


KINDS = ("forward_pre", "forward", "backward_pre", "backward")
CASES = [
    (Net, images, "features.[3-4]", ["features.3", "features.4"]),
    (Net, images, ["head", re.compile(r"\.2$")], ["features.2", "head"]),
    (Words, sentences, "encoder.layers.*.linear1", ["encoder.layers.0.linear1", "encoder.layers.1.linear1"]),
    (Words, sentences, "encoder.layers.?", ["encoder.layers.0", "encoder.layers.1"]),
    (Words, sentences, "*self_attn", ["encoder.layers.0.self_attn", "encoder.layers.1.self_attn"]),
]


@pytest.mark.parametrize(("kind", "data", "pattern", "names"), CASES)
def test_functions_see_the_same_values_as_plain_pytorch_hooks(kind, data, pattern, names):
    ours, theirs = Seen(), Seen()
    model = made(kind)
    make(model, ours.callback(pattern, *KINDS)).fit(data(), data(1), epochs=2)
    by_hand = made(kind)
    theirs.by_hand(by_hand, names, *KINDS)
    make(by_hand).fit(data(), data(1), epochs=2)
    assert {name for _, name, _ in ours.calls} == set(names)
    assert {kind for kind, _, _ in ours.calls} == set(KINDS)
    assert ours == theirs
    assert all(map(torch.equal, model.state_dict().values(), by_hand.state_dict().values()))
    assert left(model) == []


@pytest.mark.parametrize("pads", [False, True])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_fast_path_of_a_transformer_skips_no_hook(pads):
    """In eval mode a layer takes a fast path that skips its submodules, unless one of them has a hook."""
    model = Words(pads=pads).eval()
    names = [name for name, _ in model.encoder.named_modules() if name not in ("", "layers") and "out_proj" not in name]
    for name in names:
        seen = Seen()
        make(model, seen.callback(f"encoder.{name}", "forward_pre")).predict([sentences(1)[0][0]])
        assert [one for _, one, _ in seen.calls] == [f"encoder.{name}"]


def test_modules_that_are_never_called_are_named_once(caplog):
    model = Words()
    make(model, Seen().callback("*", "forward")).fit(sentences(), sentences(1), epochs=2)
    (line,) = caplog.messages
    names = "encoder.layers.0.self_attn.out_proj, encoder.layers.1.self_attn.out_proj. Possible reasons: forward does not call"
    assert line.startswith(f"ModuleHooks(*) was never called for {names}")


def test_modules_that_are_called_are_not_named(caplog):
    make(Net(), Seen().callback(["*", ""], "forward")).fit(images(), epochs=2)
    assert caplog.messages == []


# Effects of functions


def test_a_returned_value_replaces_the_output_or_input():
    outputs = []
    zero = ModuleHooks("features", forward=lambda module, args, output: 0 * output)
    one = ModuleHooks("head", forward_pre=lambda module, args: (args[0] + 1,), forward=lambda m, a, output: outputs.append(a))
    make(Net(), zero, one).fit(images(1), epochs=1)
    assert torch.equal(outputs[0][0], torch.ones(4, 64))


def test_a_gradient_can_be_replaced():
    model = Net()
    none = ModuleHooks("head", backward=lambda module, grad_input, grad_output: tuple(0 * one for one in grad_input))
    make(model, none).fit(images(1), epochs=1)
    assert model.head.weight.grad.abs().sum() > 0
    assert model.features[3].weight.grad.abs().sum() == 0


def test_hooks_on_the_model_itself_get_keyword_arguments():
    class Scaled(nn.Linear):
        def forward(self, x, *, scale=1):
            return super().forward(x) * scale

    model, seen = Scaled(2, 2), []

    def forward(module, args, kwargs, output, *, name):
        seen.append((name, kwargs))

    def forward_pre(module, args, kwargs):
        return args, {"scale": 3}

    with Loop([ModuleHooks("", forward=forward, forward_pre=forward_pre, with_kwargs=True)], model=model, **QUIET) as run:
        for batch in run.batches([torch.ones(1, 2)]):
            assert torch.equal(model(batch, scale=2), 3 * nn.Linear.forward(model, batch))
    assert seen == [("", {"scale": 3})]


def test_a_function_without_a_name_parameter_is_called_as_by_pytorch():
    calls = []
    make(Net(), ModuleHooks("head", forward=lambda *given: calls.append(len(given)))).fit(images(1), epochs=1)
    assert calls == [3]


def test_an_error_names_the_callback_and_the_module():
    def fails(module, args, output):
        raise ZeroDivisionError("by hand")

    model = Net()
    with pytest.raises(ZeroDivisionError, match="by hand") as caught:
        make(model, ModuleHooks("head", forward=fails)).fit(images(), epochs=1)
    assert caught.value.__notes__[0] == "in ModuleHooks(head), forward hook of 'head'"
    with pytest.raises(ZeroDivisionError) as caught:
        make(model, ModuleHooks("features.3", backward=fails, name="mine")).fit(images(), epochs=1)
    assert "in mine, backward hook of 'features.3'" in caught.value.__notes__
    assert left(model) == []


# Begin and end


@pytest.mark.parametrize(
    "point", ["on_run_begin", "on_train_iter_begin", "on_backward_end", "on_val_iter_begin", "on_epoch_end"]
)
def test_no_hook_is_left_after_an_exception(point):
    class Fails(Callback):
        pass

    def fail(run):
        raise RuntimeError("enough")

    fails, model = Fails(), Net()
    setattr(fails, point, fail)
    hooks = Seen().callback("*", "forward_pre", "forward")
    for callbacks in ([hooks, fails], [fails, hooks]):
        with pytest.raises(RuntimeError, match="enough"):
            make(model, *callbacks).fit(images(), images(1), epochs=1)
        assert left(model) == []


@pytest.mark.parametrize("job", ["validate", "predict", "predict_iter"])
def test_validate_and_predict_outside_fit_call_the_hooks(job):
    model, seen = Net(), Seen()
    runner = make(model, seen.callback("head", "forward"))
    for _ in range(2):
        result = getattr(runner, job)(images(3))
        if job == "predict_iter":
            next(result)
            assert left(model) == [("head", "_forward_hooks")]
            result.close()
        assert left(model) == []
    assert len(seen.calls) == (2 if job == "predict_iter" else 6)


@pytest.mark.parametrize("job", ["validate", "predict"])
def test_no_hook_is_left_after_a_failed_pass(job):
    class Fails(Callback):
        def on_iter_begin(self, run):
            if run.batch_idx == 1:
                raise RuntimeError("enough")

    model, seen, fails = Net(), Seen(), Fails()
    with pytest.raises(RuntimeError, match="enough"):
        getattr(make(model, seen.callback("head", "forward"), fails), job)(images(3))
    assert left(model) == []
    assert len(seen.calls) == 1


def test_a_nested_pass_does_not_remove_the_hooks():
    model, seen = Net(), Seen()

    class Looks(Callback):
        def on_val_iter_begin(self, run):
            if run.batch_idx == 0 and not seen.calls:
                runner.predict(images(1))

    runner = make(model, seen.callback("head", "forward"), Looks())
    runner.validate(images(2))
    assert len(seen.calls) == 3
    assert left(model) == []


def test_passes_within_fit_call_the_hooks_once():
    model, seen = Net(), Seen()

    class Looks(Callback):
        def on_epoch_end(self, run):
            runner.validate(images(1))
            runner.predict(images(1))
            assert left(model) == [("head", "_forward_hooks")]

    runner = make(model, seen.callback("head", "forward"), Looks())
    runner.fit(images(2), images(1), epochs=2)
    assert len(seen.calls) == 2 * (2 + 1 + 1 + 1)
    assert left(model) == []


def test_a_callback_can_be_used_for_several_runs():
    seen = Seen()
    hooks = seen.callback("head", "forward")
    for _ in range(2):
        model = Net()
        make(model, hooks).fit(images(2), epochs=1)
        assert left(model) == []
    assert len(seen.calls) == 4


def test_hooks_listen_at_no_point_of_a_step():
    hooks = Loop([Seen().callback("*", *KINDS)], **QUIET).hooks
    points = ("on_iter_begin", "on_train_iter_begin", "on_backward_begin", "on_step_begin", "on_step_end", "on_train_iter_end")
    assert all(hooks.dispatch(point, mode="train") is None for point in (*points, "on_iter_end", "on_batch_fetch_begin"))


def test_copies_of_the_model_made_during_the_run_call_no_hook():
    model, seen = Net(), Seen()

    class Copies(Callback):
        def on_epoch_end(self, run):
            self.copies = [copy.deepcopy(run.model), pickle.loads(pickle.dumps(run.model))]

    copies = Copies()
    make(model, seen.callback("head", "forward"), copies).fit(images(1), epochs=1)
    for one in copies.copies:
        one(images(1)[0][0])
    assert len(seen.calls) == 1


# Shared, repeated and checkpointed modules


def test_a_shared_module_is_hooked_once_under_the_first_matching_name():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Linear(2, 2)
            self.decoder = self.encoder

        def forward(self, x):
            return self.decoder(self.encoder(x))

    for pattern, name in (("*", "encoder"), ("decoder", "decoder")):
        seen, model = Seen(), Shared()
        make(model, seen.callback(pattern, "forward")).predict([torch.ones(1, 2)])
        assert [one for _, one, _ in seen.calls] == [name, name]
        assert left(model) == []


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_module_is_called_again_in_the_backward_pass(reentrant):
    class Checkpointed(Net):
        def forward(self, x):
            x = x.requires_grad_()
            return self.head(checkpoint(self.features, x, use_reentrant=reentrant).flatten(1))

    seen, by_hand = Seen(), Seen()
    model, other = made(Checkpointed), made(Checkpointed)
    make(model, seen.callback("features.3", "forward")).fit(images(1), epochs=1)
    by_hand.by_hand(other, ["features.3"], "forward")
    make(other).fit(images(1), epochs=1)
    assert len(seen.calls) == 2
    assert seen == by_hand


# Compiled models


def compiled_whole(model, backend):
    return torch.compile(model, backend=backend)


def compiled_in_place(model, backend):
    model.compile(backend=backend)
    return model


def compiled_part(model, backend):
    model.features = torch.compile(model.features, backend=backend)
    return model


@pytest.fixture
def compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.thin(2)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("how", [compiled_whole, compiled_in_place, compiled_part])
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor"
)  # torch accesses .grad between the compiled parts of a model
def test_a_compiled_model_that_was_called_before_calls_the_hooks(how, backend, compiler):
    plain, ours = Seen(), Seen()
    make(made(Net), plain.callback("features.[3-4]", *KINDS)).fit(images(), images(1), epochs=2)
    model = made(Net)
    compiled = how(model, backend)
    make(copy.deepcopy(compiled)).fit(images(), images(1), epochs=1)
    with torch.no_grad():
        compiled.eval()(images(1)[0][0])  # compiled without hooks, for which it no longer checks
    runner = make(compiled.train(), ours.callback("features.[3-4]", *KINDS))
    runner.fit(images(), images(1), epochs=2)
    assert [call[:2] for call in ours.calls] == [call[:2] for call in plain.calls]
    for mine, its in zip(ours.calls, plain.calls, strict=True):
        torch.testing.assert_close(mine[2], its[2])
    assert left(model) == []
    ours.calls.clear()
    compiled.eval()(images(1)[0][0])
    assert ours.calls == []
    runner.predict(images(2))
    assert len(ours.calls) == 2 * 4


# Errors


def test_a_pattern_that_matches_nothing_raises_before_the_first_step():
    with pytest.raises(BadLoop, match=r"^ModuleHooks\(haed\): 'haed' matches no module\.\n  similar   head"):
        make(Net(), Seen().callback("haed", "forward")).fit(images(), epochs=1)
    with pytest.raises(BadLoop, match="'haed' matches no module"):
        make(Net(), Seen().callback("haed", "forward")).predict(images())
    with pytest.raises(BadLoop, match=r"^ModuleHooks\(x\) found no module"), Loop([Seen().callback("x", "forward")], **QUIET):
        pass


def test_invalid_arguments_raise():
    with pytest.raises(ValueError, match=r"no function to call\.\n  give      forward_pre=\.\.\. or forward=\.\.\. or "):
        ModuleHooks("*")
    with pytest.raises(TypeError, match=r"ModuleHooks: forward must be a function, got 3"):
        ModuleHooks("*", forward=3)
    with pytest.raises(ValueError, match="needs a forward hook"):
        ModuleHooks("*", backward=print, with_kwargs=True)
    with pytest.raises(ValueError, match="ModuleHooks: None is not a pattern"):
        ModuleHooks(None, forward=print)


def test_the_default_name_contains_the_pattern():
    names = [ModuleHooks(pattern, forward=print).name for pattern in ("a.*", ["a", "b"], "", re.compile("^x"))]
    assert names == ["ModuleHooks(a.*)", "ModuleHooks(a, b)", "ModuleHooks('')", "ModuleHooks(^x)"]


def test_other_hooks_are_not_removed():
    model, calls = Net(), []
    handle = model.head.register_forward_hook(lambda *given: calls.append(1))
    make(model, Seen().callback("*", "forward")).fit(images(1), epochs=1)
    assert left(model) == [("head", "_forward_hooks")]
    handle.remove()
    assert calls == [1]
