from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass

import numpy
import pytest
import torch

from hookpoint import Every, Loop, Runner
from hookpoint.callbacks import DumpTensorAsImage, DumpTensors, ProcessTensors, SimpleMovingAverage, TensorPrinter
from hookpoint.core.errors import BadLoop, BadValue


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 3)
        self.norm = torch.nn.BatchNorm1d(3)
        self.head = torch.nn.Linear(3, 3)
        self.tied = torch.nn.Linear(3, 3)
        self.tied.weight = self.head.weight

    def forward(self, x):
        return self.tied(self.head(self.norm(self.fc(x))))


def data(batches=4, size=4):
    numbers = torch.Generator().manual_seed(0)
    return [(torch.rand(size, 2, generator=numbers), torch.randint(0, 3, (size,), generator=numbers)) for _ in range(batches)]


def read(names, body, *, when=None, batches=(1, 2), **given):
    """Return what your own loop reads under these names, by trigger."""
    seen = []
    callback = ProcessTensors(names, lambda *values: seen.append(values))
    with Loop([callback.when(when) if when is not None else callback], extra_callbacks=[], monitors=[], **given) as run:
        for _ in run.epochs(1):
            for batch in run.batches(list(batches)):
                body(run, batch)
    return seen


def fit(names, *, when=None, batches=None, epochs=1, model=None, optimizer=torch.optim.SGD, **given):
    """Return what a Runner reads under these names, by trigger, and the model."""
    torch.manual_seed(0)
    seen = []
    callback = ProcessTensors(names, lambda *values: seen.append(values))
    model = Net() if model is None else model
    given = {"device": "cpu", "extra_callbacks": [], "monitors": [], **given}
    callbacks = [callback.when(when) if when is not None else callback]
    runner = Runner(model, optimizer(model.parameters(), lr=0.1), torch.nn.CrossEntropyLoss(), callbacks=callbacks, **given)
    runner.fit(data() if batches is None else batches, epochs=epochs)
    return seen, model


# Names


def test_loss_outputs_batch_and_targets_belong_to_the_iteration():
    seen, _ = fit(["loss", "outputs", "batch/0", "targets"])
    assert len(seen) == 4
    for (loss, outputs, inputs, targets), (x, y) in zip(seen, data(), strict=True):
        assert torch.equal(inputs, x)
        assert torch.equal(targets, y)
        assert torch.equal(torch.nn.functional.cross_entropy(outputs, y), loss)


def test_values_are_detached_but_not_copied():
    seen, model = fit(["loss", "outputs", "fc.weight", "norm.running_mean"])
    assert not any(value.requires_grad for values in seen for value in values)
    assert seen[0][2].data_ptr() == model.fc.weight.data_ptr()
    assert seen[0][3].data_ptr() == model.norm.running_mean.data_ptr()


Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Out:
    logits: float
    hidden: tuple


@pytest.mark.parametrize(
    ("name", "outputs", "expected"),
    [
        ("outputs", 5.0, 5.0),
        ("outputs/logits", {"logits": 1.0, "x": 2.0}, 1.0),
        ("outputs/1", (1.0, 2.0), 2.0),
        ("outputs/0/a/1", [{"a": (1.0, 2.0)}], 2.0),
        ("outputs/a/b", {"a/b": 1.0}, 1.0),
        ("outputs/a/b/c", {"a/b": {"c": 3.0}}, 3.0),
        ("outputs/7", {7: 1.0}, 1.0),
        ("outputs/right", Pair(1.0, 2.0), 2.0),
        ("outputs/0", Pair(1.0, 2.0), 1.0),
        ("outputs/hidden/0", Out(1.0, (4.0,)), 4.0),
    ],
)
def test_a_path_selects_a_value_within_the_outputs(name, outputs, expected):
    def body(run, batch):
        run.outputs = outputs

    assert read(name, body) == [(expected,)] * 2


def test_a_metric_is_read_as_logged_and_stands_in_for_an_unset_loss():
    def body(run, batch):
        run.log({"loss": batch / 2, "accuracy": torch.tensor(batch / 4), "batch/size": 9})

    assert read(["loss", "accuracy", "batch/size"], body) == [(0.5, 0.25, 9), (1.0, 0.5, 9)]


def test_a_mapping_renames_values_and_adds_functions_of_the_run():
    assert read({"twice": lambda run: run.batch * 2, "it": "batch"}, lambda run, batch: None) == [(2, 1), (4, 2)]


def test_arrays_and_numbers_are_returned_unchanged():
    array = numpy.arange(3)

    def body(run, batch):
        run.outputs = (array, 3)

    assert read(["outputs/0", "outputs/1"], body)[0][0] is array


def test_a_tied_parameter_can_be_read_under_each_name():
    seen, model = fit(["tied.weight", "head.weight"])
    assert seen[0][0].data_ptr() == seen[0][1].data_ptr() == model.head.weight.data_ptr()


def test_parameters_of_several_models_start_with_their_keys():
    models = {"one": torch.nn.Linear(1, 1), "two": [torch.nn.Linear(1, 2)]}
    (weight, bias), _ = read(["one.weight", "two.0.bias"], lambda run, batch: None, model=models)
    assert weight.shape == (1, 1)
    assert bias.shape == (2,)


def test_an_output_or_buffer_named_grad_is_not_a_gradient():
    model = torch.nn.Linear(1, 1)
    model.register_buffer("grad", torch.tensor(5.0))
    holder = torch.nn.ModuleDict({"inner": model})

    def body(run, batch):
        run.outputs = {"x.grad": batch}

    assert read(["outputs/x.grad", "inner.grad"], body, model=holder) == [(1, 5.0), (2, 5.0)]


# Gradients


def own_loop(names, *, clear, when=None, accumulate=1, optimizers=1, batches=4):
    """Return what is read in a loop that clears gradients with `clear`, and the gradients that its steps used."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    used = []

    def body(run, batch):
        model(torch.full((1, 2), float(batch))).sum().backward()
        if batch % accumulate == 0:
            used.append(model.weight.grad.clone())
            optimizer.step()
            clear(optimizer)

    given = {"optimizer": optimizer if optimizers == 1 else {"first": optimizer}, "model": model}
    return read(names, body, when=when, batches=range(1, batches + 1), **given), used


CLEARED = {
    "set to None": lambda optimizer: optimizer.zero_grad(),
    "set to zero": lambda optimizer: optimizer.zero_grad(set_to_none=False),
    "never": lambda optimizer: None,
}


@pytest.mark.parametrize("clear", CLEARED.values(), ids=CLEARED)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_gradients_are_those_of_the_step_however_they_are_cleared(clear, accumulate):
    seen, used = own_loop("weight.grad", clear=clear, accumulate=accumulate)
    assert len(seen) == len(used) == 4 // accumulate
    assert all(torch.equal(value, expected) for (value,), expected in zip(seen, used, strict=True))


def test_between_steps_gradients_are_those_of_the_last_step():
    seen, used = own_loop("weight.grad", clear=CLEARED["set to None"], accumulate=2, when=Every(iterations=1))
    assert [value.tolist() for (value,) in seen] == [used[0].tolist(), used[0].tolist(), used[1].tolist()]


def test_after_an_epoch_gradients_are_those_of_its_last_step():
    seen, used = own_loop("weight.grad", clear=CLEARED["set to zero"], when=Every(epochs=1), optimizers=2)
    assert torch.equal(seen[0][0], used[-1])


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"clip_grad_norm": 0.01}, {"precision": "bf16"}])
def test_gradients_of_a_runner_match_the_change_of_the_weights(options):
    before = []
    torch.manual_seed(0)
    model = Net()

    def see(weight, gradient):
        before.append((weight.clone(), gradient))

    runner = Runner(
        model,
        torch.optim.SGD(model.parameters(), lr=0.5),
        torch.nn.CrossEntropyLoss(),
        callbacks=[ProcessTensors(["fc.weight", "fc.weight.grad"], see)],
        extra_callbacks=[],
        monitors=[],
        **options,
    )
    start = model.fc.weight.detach().clone()
    runner.fit(data(), epochs=1)
    assert len(before) == 4 // options.get("accumulate", 1)
    for weight, gradient in before:
        torch.testing.assert_close(start - 0.5 * gradient, weight)
        start = weight


# Other schedules


def test_after_an_epoch_values_are_copies_from_its_last_iteration():
    seen, _ = fit(["batch/1", "loss", "fc.weight"], when=Every(epochs=1), epochs=2)
    assert [values[0].tolist() for values in seen] == [data()[-1][1].tolist()] * 2
    assert not seen[0][1].requires_grad


def test_after_an_epoch_of_unknown_length_values_are_copies():
    seen, _ = fit(["batch/1"], when=Every(epochs=1), batches=Unmeasured())
    assert [values[0].tolist() for values in seen] == [data()[-1][1].tolist()]


class Unmeasured:
    def __iter__(self):
        return iter(data())


def test_after_an_epoch_arrays_are_copies():
    buffer = numpy.zeros(2)

    class Reused:
        def __iter__(self):
            for number in (1, 2):
                buffer[:] = number
                yield buffer
            buffer[:] = 9

    seen = []
    callback = ProcessTensors("batch", seen.append).when(Every(epochs=1))
    with Loop([callback], extra_callbacks=[], monitors=[]) as run:
        for _ in run.batches(Reused()):
            pass
    assert seen[0].tolist() == [2, 2]


def test_an_epoch_without_an_iteration_is_reported_once(caplog):
    with Loop([ProcessTensors(["batch"], print).when(Every(epochs=1))], extra_callbacks=[], monitors=[]) as run:
        for _ in run.epochs(3):
            pass
    line = "ProcessTensors has nothing to read: this epoch completed no training iteration since the run started or resumed"
    assert caplog.messages == [line]


def test_no_object_of_a_run_is_kept_after_it():
    callback = ProcessTensors(["batch", "weight.grad"], lambda batch, gradient: None)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop = Loop([callback], model=model, optimizer=optimizer, extra_callbacks=[], monitors=[])
    with pytest.raises(ZeroDivisionError), loop as run:
        for _ in run.batches([1, 2]):
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
            if run.step == 2:
                raise ZeroDivisionError
    assert not callback._model
    assert not callback._gradients
    assert callback._last is None


# Errors


def refused(names, body=lambda run, batch: None, kind=BadLoop, **given):
    """Return the error that rejects the names, and the number of iterations before it."""
    done = []

    def counted(run, batch):
        done.append(batch)
        body(run, batch)

    with pytest.raises(kind) as caught:
        read(names, counted, batches=range(9), **given)
    return str(caught.value), len(done)


def test_a_misspelled_parameter_raises_before_training():
    assert refused("fc.wieght", model=Net()) == (
        "ProcessTensors reads 'fc.wieght', which the model does not have.\n  write     'fc.weight'",
        0,
    )
    assert refused("norm.runing_mean", model=Net())[0].endswith("write     'norm.running_mean'")


def test_the_gradient_of_a_misspelled_parameter_raises_before_training():
    text, done = refused("fc.wheight.grad", model=Net(), optimizer=torch.optim.SGD(Net().parameters(), lr=1))
    assert text.startswith(
        "ProcessTensors reads 'fc.wheight.grad', but the model has no 'fc.wheight'.\n  write     'fc.weight.grad'"
    )
    assert done == 0
    assert refused("fc.weight.grad")[0].endswith("give      model=...")


def test_a_gradient_without_an_optimizer_raises():
    assert refused("fc.weight.grad", model=Net()) == (
        "ProcessTensors needs an optimizer to read 'fc.weight.grad'.\n  give      optimizer=...",
        0,
    )


def test_other_unknown_names_raise_after_the_first_iteration():
    def body(run, batch):
        run.outputs = {"logits": 1.0, "hidden": 2.0}
        run.log(accuracy=0.5)

    text, done = refused("outputs/logit", body, model=torch.nn.Linear(1, 1))
    assert text == (
        "ProcessTensors reads 'outputs/logit', which does not exist.\n"
        "  write     'outputs/logits'\n"
        "  known     outputs/logits, outputs/hidden, batch, accuracy, weight, bias"
    )
    assert done == 1
    assert refused("nonsense", body)[1] == 1


def test_a_name_that_is_set_and_logged_is_listed_once():
    def body(run, batch):
        run.loss = torch.tensor(1.0)
        run.log(loss=run.loss)

    assert refused("nothing", body)[0].endswith("known     loss, batch")


@pytest.mark.parametrize("name", ["outputs/logit", "acuracy"])
def test_unknown_names_raise_after_the_first_iteration_with_any_schedule(name):
    def body(run, batch):
        run.outputs = {"logits": 1.0}
        run.log(accuracy=0.5)

    for when in (Every(steps=8), Every(epochs=1)):
        assert refused(name, body, when=when)[1] == 1


def test_the_error_for_an_unset_value_says_how_to_set_it():
    assert refused("outputs/x") == (
        "ProcessTensors reads 'outputs/x', but run.outputs is not set.\n  set       run.outputs = ...",
        1,
    )
    assert refused("loss")[0].endswith("set       run.loss = ... or run.log(loss=...)")


def test_a_value_that_is_not_a_tensor_raises():
    def body(run, batch):
        run.outputs = {"a": (1, 2)}

    assert refused("outputs", body, BadValue)[0] == (
        "ProcessTensors: 'outputs' is a dict, not a tensor.\n  write     'outputs/a'"
    )
    assert refused({"mine": lambda run: None}, body, BadValue)[0] == (
        "ProcessTensors: 'mine' is None, not a tensor.\n  give      one tensor, array or number"
    )


def test_only_some_names_of_a_large_model_are_listed():
    model = torch.nn.Sequential(*(torch.nn.Linear(1, 1) for _ in range(20)))
    assert refused("nonsense", model=model)[0].endswith("4.weight, 4.bias, and 30 more in the model")


def test_a_parameter_without_a_gradient_raises():
    model = Net()
    model.head.bias.requires_grad_(False)
    with pytest.raises(BadLoop, match=r"'head\.bias\.grad' is None at step 1"):
        fit(["head.bias.grad"], model=model)


@pytest.mark.parametrize("names", [[3], [""], {"a": 3}, {"": "loss"}, [None]])
def test_an_invalid_name_raises_at_once(names):
    with pytest.raises(TypeError, match="is not the name of a tensor"):
        TensorPrinter(names)


def test_empty_and_duplicate_names_raise():
    with pytest.raises(ValueError, match="TensorPrinter: names is empty"):
        TensorPrinter([])
    with pytest.raises(ValueError, match="TensorPrinter: names contains a duplicate: loss, batch, loss"):
        TensorPrinter(["loss", "batch", "loss"])


# On a GPU


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("precision", ["32", "bf16", "fp16"])
def test_reading_from_a_gpu_does_not_wait_and_gives_the_values_of_each_step(precision, tmp_path, capsys):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 3)).cuda()
    names = ["loss", "outputs", "batch/0", "3.weight", "3.weight.grad"]
    seen = []
    both = Every(steps=10) | Every(epochs=1)
    runner = Runner(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1, foreach=True),
        torch.nn.CrossEntropyLoss(),
        callbacks=[
            ProcessTensors(names, lambda *values: seen.append([value.clone() for value in values])),
            TensorPrinter(names),
            DumpTensors(names),
            DumpTensorAsImage("batch/0", "inputs").when(both),
            SimpleMovingAverage("loss", 10),
        ],
        device="cuda",
        precision=precision,
        strict_sync=precision != "fp16",  # the scaler of fp16 waits
        workdir=tmp_path,
        extra_callbacks=[],
        monitors=[],
    )
    inputs = [(torch.rand(4, 1, 8, 8), torch.randint(0, 3, (4,))) for _ in range(30)]
    run = runner.fit(inputs, epochs=2)

    printed = [line for line in capsys.readouterr().err.splitlines() if line.startswith("step ")]
    assert len(printed) == len(seen) == run.step > 50  # fp16 may skip some steps
    losses = []
    for step, values in enumerate(seen, start=1):
        losses.append(values[0].item())
        with numpy.load(tmp_path / "tensor-dumps" / f"DumpTensor-{step}.npz", allow_pickle=False) as file:
            for name, value in zip(names, values, strict=True):
                value = value.float() if value.dtype == torch.bfloat16 else value
                assert numpy.array_equal(file[name], value.cpu().numpy())
        assert printed[step - 1].startswith(f"step {step}: loss {losses[-1]:.6g}, outputs 4 x 3 [")
    means = [value for _, value in run.monitors.get_history("loss/SMA")]
    assert means == pytest.approx([sum(losses[at : at + 10]) / 10 for at in range(0, run.step - 9, 10)])
    images = list((tmp_path / "tensor-dumps").glob("inputs-*.png"))
    assert len(images) == 4 * (run.step // 10 + 2)
