"""Features are the outputs of layers: one row per sample, in the order of the data. No hook is left on the model."""

from __future__ import annotations

import contextlib
import pickle

import pytest
import torch
from torch import nn

from hookpoint import Callback, Loop, Runner
from hookpoint.callbacks import FeatureTap
from hookpoint.callbacks.model_hooks.feature_tap import FeatureRows
from hookpoint.core.errors import BadLoop, CompileError

QUIET = {"extra_callbacks": [], "monitors": []}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True))
        self.head = nn.Linear(32, 2)

    def forward(self, x):
        return self.head(self.body(x).flatten(1))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)

    def forward(self, x):
        return self.encoder(self.embed(x), src_key_padding_mask=x == 0)


def images(sizes=(3, 3, 3, 2)):
    torch.manual_seed(1)
    return [torch.randn(size, 1, 6, 6) for size in sizes]


def labelled(number=2):
    return [(one, torch.zeros(len(one), dtype=torch.long)) for one in images((3,) * number)]


def make(model, *callbacks, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Runner(model, optimizer, nn.CrossEntropyLoss(), callbacks=callbacks, **{**QUIET, "device": "cpu", **options})


def outputs_of(model, name, batches):
    """Return the outputs of a module, recorded by a plain forward hook."""
    outputs = []
    handle = model.get_submodule(name).register_forward_hook(lambda module, args, output: outputs.append(output.clone()))
    with torch.no_grad():
        model.eval()
        for batch in batches:
            model(batch)
        model.train()
    handle.remove()
    return outputs


def test_features_are_the_outputs_in_the_order_of_the_data(hooked_modules):
    model, tap = Net(), FeatureTap(["body.*", "head"])
    predictions = make(model, tap).predict(images())
    assert list(tap.features) == ["body.0", "body.1", "head"]
    for name in tap.features:
        assert torch.equal(tap.features[name], torch.cat(outputs_of(model, name, images())))
    assert torch.equal(tap.features["head"], torch.cat(predictions))
    assert hooked_modules(model) == []


def test_features_are_copied_before_a_later_layer_changes_them_in_place():
    model, tap = Net(), FeatureTap("body.0")
    make(model, tap).predict(images())
    assert (tap.features["body.0"] < 0).any()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_layers_of_a_transformer_are_tapped_despite_its_fast_path():
    torch.manual_seed(0)
    model, tap = Words(), FeatureTap("encoder.layers.*.linear1")
    make(model, tap).predict([torch.randint(1, 11, (3, 5)) for _ in range(2)])
    assert {name: tuple(one.shape) for name, one in tap.features.items()} == {
        "encoder.layers.0.linear1": (6, 5, 16),
        "encoder.layers.1.linear1": (6, 5, 16),
    }


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_packed_outputs_are_padded():
    model, tap = Words(), FeatureTap("encoder.layers.1")
    make(model, tap).predict([torch.tensor([[1, 2, 3], [4, 0, 0]])])
    features = tap.features["encoder.layers.1"]
    assert tuple(features.shape) == (2, 3, 8)
    assert features[1, 1:].abs().sum() == 0


def test_pool_reduces_each_output():
    model, tap = Net(), FeatureTap("body", pool=lambda output: output.mean((2, 3)))
    make(model, tap).predict(images())
    assert torch.equal(tap.features["body"], torch.cat(outputs_of(model, "body", images())).mean((2, 3)))


def test_outputs_of_different_lengths_raise_without_pool(hooked_modules):
    batches = [torch.randint(1, 11, (2, length)) for length in (4, 6)]
    model = Words()
    with pytest.raises(BadLoop, match=r"'embed' has shape \[6, 8\] per sample, but had \[4, 8\] before") as caught:
        make(model, FeatureTap("embed")).predict(batches)
    assert "in FeatureTap(embed), forward hook of 'embed'" in caught.value.__notes__
    assert hooked_modules(model) == []
    tap = FeatureTap("embed", pool=lambda output: output.mean(1))
    make(model, tap).predict(batches)
    assert tuple(tap.features["embed"].shape) == (4, 8)


def test_repeated_calls_of_a_layer_get_numbered_names():
    class Twice(Net):
        def forward(self, x):
            return super().forward(x) + super().forward(-x)

    model, tap = Twice(), FeatureTap("head")
    predictions = torch.cat(make(model, tap).predict(images()))
    assert list(tap.features) == ["head", "head#2"]
    assert torch.allclose(tap.features["head"] + tap.features["head#2"], predictions)


def test_features_match_the_predictions_when_batches_are_skipped_or_retried():
    class Asks(Callback):
        def __init__(self):
            self.asked = set()

        def on_pred_iter_begin(self, run):
            if run.batch_idx == 1:
                run.skip_batch()

        def on_iter_error(self, run):
            run.retry()

    class Fails(Net):
        fails = True

        def forward(self, x):
            outputs = super().forward(x)
            if len(x) == 2 and self.fails:
                self.fails = False
                raise RuntimeError("once")
            return outputs

    model, tap = Fails(), FeatureTap("head")
    predictions = make(model, Asks(), tap).predict(images())
    assert len(predictions) == 3
    assert torch.equal(tap.features["head"], torch.cat(predictions))


def test_only_the_last_pass_is_kept_and_training_is_not_tapped(hooked_modules):
    model, tap = Net(), FeatureTap("head")
    runner = make(model, tap)
    runner.fit(labelled(), labelled(1), epochs=1)
    assert tap.features == {}
    runner.predict(images())
    runner.predict(images((2, 1)))
    assert len(tap.features["head"]) == 3
    runner.validate(labelled(3))
    assert len(tap.features["head"]) == 3
    assert hooked_modules(model) == []


def test_validation_passes_are_tapped_if_requested(hooked_modules):
    model, tap = Net(), FeatureTap("head", modes=["val", "pred"])
    runner = make(model, tap)
    runner.fit(labelled(4), labelled(2), epochs=2)
    assert len(tap.features["head"]) == 6
    runner.predict(images((1,)))
    assert len(tap.features["head"]) == 1
    assert hooked_modules(model) == []


def test_predictions_within_a_fit_are_tapped(hooked_modules):
    model, tap, shapes = Net(), FeatureTap("head"), []

    class Looks(Callback):
        def on_epoch_end(self, run):
            runner.predict(images())
            shapes.append(tuple(tap.features["head"].shape))

    runner = make(model, tap, Looks())
    runner.fit(labelled(), epochs=2)
    assert shapes == [(11, 2), (11, 2)]
    assert hooked_modules(model) == []


def test_training_is_not_tapped_after_a_failed_prediction(hooked_modules):
    model, tap = Net(), FeatureTap("head")

    class Looks(Callback):
        def on_epoch_begin(self, run):
            with contextlib.suppress(RuntimeError):
                runner.predict([torch.ones(1, 5)])

        def on_train_iter_end(self, run):
            self.left = hooked_modules(model)

    looks = Looks()
    runner = make(model, tap, looks)
    runner.fit(labelled(), epochs=1)
    assert looks.left == hooked_modules(model) == []
    assert tap.features == {}


def test_no_hook_is_left_when_predictions_are_abandoned(hooked_modules):
    model, tap = Net(), FeatureTap("head")
    for number, _ in enumerate(make(model, tap).predict_iter(images())):
        if number == 1:
            break
    assert hooked_modules(model) == []
    assert len(tap.features["head"]) == 6


def test_features_are_tapped_in_your_own_loop(hooked_modules):
    model, tap = Net(), FeatureTap("head")
    with Loop([tap], model=model, **QUIET) as run:
        for batch in run.batches(images(), mode="pred"):
            model(batch)
        assert len(tap.features["head"]) == 11
        assert not tap.features["head"].requires_grad
        for batch in run.batches(images()):
            model(batch)
    assert len(tap.features["head"]) == 11
    assert hooked_modules(model) == []


def test_features_are_written_to_a_file(tmp_path):
    from safetensors.torch import load_file

    model, tap = Net(), FeatureTap(["body", "head"], file="features.safetensors")
    runner = make(model, tap, workdir=tmp_path / "run")
    for batches in (images(), images((2, 1))):
        runner.predict(batches)
        read = load_file(tmp_path / "run" / "features.safetensors")
        assert sorted(read) == ["body", "head"]
        assert all(torch.equal(read[name], tap.features[name]) for name in read)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["features.safetensors"]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize("in_place", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_compiled_model_that_was_called_before_is_tapped(in_place, hooked_modules):
    torch.compiler.reset()
    model, tap = Net(), FeatureTap("body")
    compiled = model if in_place else torch.compile(model, backend="eager")
    if in_place:
        model.compile(backend="eager")
    runner = make(compiled, tap)
    for _ in range(2):
        predictions = runner.predict(images())
        assert torch.allclose(tap.features["body"], torch.cat(outputs_of(model, "body", images())), atol=1e-6)
        assert len(torch.cat(predictions)) == 11
    assert hooked_modules(model) == []
    torch.compiler.reset()


def test_a_tap_is_pickled_with_its_features():
    tap = FeatureTap("head")
    make(Net(), tap).predict(images())
    again = pickle.loads(pickle.dumps(tap))
    assert torch.equal(again.features["head"], tap.features["head"])
    make(Net(), again).predict(images((1,)))
    assert len(again.features["head"]) == 1


def test_a_tap_listens_at_no_point_of_training():
    hooks = Loop([FeatureTap("*")], **QUIET).hooks
    for points in (("on_iter_begin", "on_train_iter_begin"), ("on_train_iter_end", "on_iter_end"), ("on_step_begin",)):
        assert hooks.dispatch(*points, mode="train") is None
    assert hooks.dispatch("on_iter_begin", "on_val_iter_begin", mode="val") is None


def test_invalid_arguments_raise():
    with pytest.raises(ValueError, match=r"FeatureTap: modes must be 'pred' or 'val', got 'train'"):
        FeatureTap("*", modes=["train"])
    with pytest.raises(TypeError, match=r"FeatureTap: pool must be a function, got 'mean'"):
        FeatureTap("*", pool="mean")
    with pytest.raises(ValueError, match=r"FeatureTap: file must be the name of a file in the workdir"):
        FeatureTap("*", file="../x")
    with pytest.raises(BadLoop, match=r"needs a workdir for 'x'"):
        make(Net(), FeatureTap("*", file="x")).predict(images())
    with pytest.raises(BadLoop, match=r"'haed' matches no module\.\n  similar   head"):
        make(Net(), FeatureTap("haed")).predict(images())
    with pytest.raises(BadLoop, match=r"'haed' matches no module"):
        make(Net(), FeatureTap("haed")).fit(labelled(), epochs=1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_features_on_a_gpu_are_copied_to_the_host():
    model, tap = Net(), FeatureTap(["body", "head"])
    runner = make(model, tap, device="cuda")
    expected = [outputs.cpu() for outputs in runner.predict_iter(images((3,) * 9))]
    assert torch.equal(tap.features["head"], torch.cat(expected))
    assert tap.features["body"].device.type == "cpu"
    assert not tap.features["body"].is_pinned()


def test_two_taps_that_write_the_same_file_raise(tmp_path):
    taps = [FeatureTap("body.*", file="x"), FeatureTap("head", file="x")]
    with pytest.raises(CompileError, match=r"FeatureTap\(body\.\*\) and FeatureTap\(head\) both write x\.") as raised:
        make(Net(), *taps, workdir=tmp_path).predict(images())
    assert "another file=" in str(raised.value)


# FeatureRows


def test_rows_are_copied_and_keep_their_order():
    rows, tensor = FeatureRows("Tap"), torch.zeros(2, 3)
    for number in range(5):
        tensor.fill_(number)
        rows.add("a", tensor[: 1 + number % 2])
        rows.keep_batch()
    tensor.fill_(9)
    assert rows.joined()["a"][:, 0].tolist() == [0, 1, 1, 2, 3, 3, 4]
    assert rows.joined() == {}


def test_a_dropped_batch_does_not_count():
    rows = FeatureRows("Tap")
    rows.add("a", torch.ones(2))
    rows.drop_batch()
    rows.add("a", torch.zeros(1))
    rows.keep_batch()
    assert rows.joined()["a"].tolist() == [0]


def test_repeated_names_are_numbered():
    rows = FeatureRows("Tap")
    for batch in range(2):
        for call in range(3):
            rows.add("a", torch.tensor([10 * batch + call]))
        rows.keep_batch()
    assert {name: one.tolist() for name, one in rows.joined().items()} == {"a": [0, 10], "a#2": [1, 11], "a#3": [2, 12]}


def test_scalars_become_rows():
    rows = FeatureRows("Tap")
    for number in (1.0, 2.0):
        rows.add("a", torch.tensor(number))
        rows.keep_batch()
    assert rows.joined()["a"].tolist() == [1, 2]


def test_dtypes_are_kept():
    rows = FeatureRows("Tap")
    rows.add("a", torch.ones(2, dtype=torch.bfloat16))
    rows.keep_batch()
    assert rows.joined()["a"].dtype is torch.bfloat16


def test_rows_of_different_shapes_raise():
    rows = FeatureRows("Tap")
    rows.add("a", torch.ones(2, 3, 4))
    rows.keep_batch()
    with pytest.raises(BadLoop, match=r"^Tap: 'a' has shape \[5, 4\] per sample, but had \[3, 4\] before\.\n  give      pool="):
        rows.add("a", torch.ones(2, 5, 4))
