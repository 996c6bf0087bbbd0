from __future__ import annotations

import pickle
import signal

import pytest
import torch
from torch import nn

import hookpoint
from hookpoint import Callback, Every, Loop, Runner
from hookpoint.callbacks import EarlyStopping, InferenceRunner, ModelSaver, ScalarStats, SwapEMAWeights
from hookpoint.core.errors import BadLoop, OutsideRun

INPUTS, TARGETS = torch.randn(24, 3, generator=torch.Generator().manual_seed(1)), torch.arange(24) % 2
DECAY = 0.9


def make(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.Linear(4, 2))
    return model, torch.optim.Adam(model.parameters(), lr=0.05)


def runner_of(*callbacks, model=None, optimizer=None, **options):
    if model is None:
        model, optimizer = make()
    return Runner(
        model, optimizer, nn.CrossEntropyLoss(), callbacks=callbacks, **{"extra_callbacks": [], "monitors": [], **options}
    )


def fit(*callbacks, epochs=3, validate_every=None, **options):
    """Train a new model; return the runner."""
    runner = runner_of(*callbacks, **options)
    data = {"batch_size": 4, "validate_every": validate_every}
    runner.fit((INPUTS, TARGETS), (INPUTS[:8], TARGETS[:8]), epochs=epochs, **data)
    return runner


def clones(state):
    return {name: value.detach().clone() for name, value in state.items()}


def same(one, other):
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


class ByHand(Callback):
    """Average with a plain implementation, and record which weights are in the model at each point."""

    def __init__(self, model, decay=DECAY, buffers=True):
        self.model, self._decay, self._buffers = model, decay, buffers
        self.averages, self.trained = clones(model.state_dict()), clones(model.state_dict())
        self.seen = []

    def on_step_end(self, run):
        parameters = dict(self.model.named_parameters())
        for name, value in self.model.state_dict().items():
            if name in parameters or (value.is_floating_point() and self._buffers):
                self.averages[name].lerp_(value, 1 - self._decay)
            else:
                self.averages[name].copy_(value)

    def on_train_iter_end(self, run):
        self.trained = clones(self.model.state_dict())

    def on_val_iter_begin(self, run):
        self.seen.append("val" if same(self.model.state_dict(), self.averages) else "WRONG")

    def on_pred_iter_begin(self, run):
        self.seen.append("pred" if same(self.model.state_dict(), self.averages) else "WRONG")

    def on_epoch_end(self, run):
        now = self.model.state_dict()
        self.seen.append("averages" if same(now, self.averages) else "trained" if same(now, self.trained) else "WRONG")


def pair(**options):
    """Return a callback and its plain implementation for a new model, and the options of a runner with that model."""
    model, optimizer = make()
    ema = SwapEMAWeights(options.pop("decay", DECAY), **options)
    return ema, ByHand(model, buffers=options.get("buffers") != "copy"), {"model": model, "optimizer": optimizer}


# The averages


@pytest.mark.parametrize("buffers", ["average", "copy"])
def test_averages_match_a_plain_implementation_and_are_used_in_validation(buffers):
    ema, by_hand, given = pair(buffers=buffers)
    fit(ema, by_hand, **given)
    assert same(ema.weights(), by_hand.averages)
    assert same(given["model"].state_dict(), by_hand.trained)
    assert not same(by_hand.averages, by_hand.trained)
    assert by_hand.seen == ["val", "val", "trained"] * 3
    assert ema.updates == 18


def test_training_is_bitwise_the_same_with_averages():
    validate = {"validate_every": Every(steps=2)}
    bare, averaged = fit(**validate), fit(SwapEMAWeights(DECAY, swap_on_epoch=True), **validate)
    assert same(bare.model.state_dict(), averaged.model.state_dict())


@pytest.mark.parametrize("options", [{"accumulate": 4}, {"precision": "bf16"}, {"clip_grad_norm": 0.1}], ids=str)
def test_optimizer_steps_are_counted(options):
    ema, by_hand, given = pair()
    fit(ema, by_hand, **given, **options)
    assert same(ema.weights(), by_hand.averages)
    assert ema.updates == (6 if "accumulate" in options else 18)


def test_averaging_begins_after_the_start_step_and_skips_steps():
    model, optimizer = make()
    expected, states = {}, []
    ema = SwapEMAWeights(DECAY, start=4, every=3, buffers="copy")

    class Watch(Callback):
        def on_step_end(self, run):
            states.append(clones(dict(model.named_parameters())))

    fit(ema, Watch(), epochs=2, model=model, optimizer=optimizer)
    expected = clones(states[3])
    for step in (6, 9, 12):
        for name, value in expected.items():
            value.lerp_(states[step - 1][name], 1 - DECAY)
    assert all(torch.equal(ema.weights()[name], expected[name]) for name in expected)


def test_a_run_that_ends_before_averaging_begins_warns(caplog):
    ema = SwapEMAWeights(start=99)
    fit(ema, epochs=1)
    assert "the run ended at step 6, but averaging begins at step 99" in caplog.text
    with pytest.raises(OutsideRun, match="SwapEMAWeights has no averages yet"):
        ema.weights()


def test_warmup_lets_the_first_updates_count_more():
    weight = nn.Parameter(torch.zeros(1))
    model = nn.ParameterList([weight])
    ema = SwapEMAWeights(0.4, warmup=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    expected = torch.zeros(1)
    with Loop([ema], model=model, optimizer=optimizer, extra_callbacks=[], monitors=[]) as run:
        for number, _ in enumerate(run.batches(range(8))):
            weight.grad = -torch.ones(1)
            optimizer.step()
            expected.lerp_(weight.detach(), 1 - min(0.4, (1 + number) / (10 + number)))
    assert torch.equal(ema.weights()["0"], expected)


def test_in_a_loop_without_an_optimizer_batches_are_counted():
    model = nn.Linear(1, 1)
    ema = SwapEMAWeights(0.5)
    with Loop([ema], model=model, extra_callbacks=[], monitors=[]) as run:
        for _ in run.batches(range(3)):
            with torch.no_grad():
                model.weight.add_(1.0)
    assert ema.updates == 3


def test_weights_unfrozen_in_a_later_epoch_are_averaged_from_the_start():
    ema, by_hand, given = pair()
    given["model"][0].requires_grad_(False)

    class Unfreezes(Callback):
        def on_epoch_begin(self, run):
            if run.epoch == 2:
                given["model"][0].requires_grad_(True)

    fit(Unfreezes(), ema, by_hand, **given)
    assert same(ema.weights(), by_hand.averages)
    assert "WRONG" not in by_hand.seen


@pytest.mark.parametrize("own_loop", [False, True])
def test_lazy_weights_are_averaged_from_their_first_step(own_loop):
    torch.manual_seed(0)
    model = nn.LazyLinear(1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ema, weights = SwapEMAWeights(0.5), []
    batches = [(torch.ones(2, 3) * scale, torch.zeros(2, 1)) for scale in (1, 2, 3)]
    note = hookpoint.on("on_train_iter_end")(lambda: weights.append(model.weight.detach().clone()))
    if own_loop:  # the loop does not know the optimizer, so the callback checks whether the weights have changed
        with Loop([note, ema], model=model) as run:
            for inputs, targets in run.batches(batches):
                nn.functional.mse_loss(model(inputs), targets).backward()
                optimizer.step()
                optimizer.zero_grad()
    else:
        runner_of(note, ema, model=model, optimizer=optimizer).fit(batches, epochs=1)
    first, second, third = weights
    assert torch.equal(ema.weights()["weight"], first.lerp(second, 0.5).lerp(third, 0.5))


def test_one_or_all_of_several_models_can_be_averaged():
    models = {"one": nn.Linear(1, 1), "two": nn.Linear(1, 1)}
    optimizer = torch.optim.SGD([*models["one"].parameters(), *models["two"].parameters()], lr=0.1)
    everything, a_part = SwapEMAWeights(0.5), SwapEMAWeights(0.5, model=models["two"], name="part")
    with Loop([everything, a_part], model=models, optimizer=optimizer, extra_callbacks=[], monitors=[]) as run:
        for _ in run.batches(range(3)):
            (models["one"](torch.ones(1, 1)) + models["two"](torch.ones(1, 1))).sum().backward()
            optimizer.step()
    assert list(everything.weights()) == ["one", "two"]
    assert same(everything.weights()["two"], a_part.weights())


def test_weights_returns_both_names_of_a_tied_weight():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    ema = SwapEMAWeights(0.5)
    with Loop([ema], model=model, optimizer=optimizer, extra_callbacks=[], monitors=[]) as run:
        for _ in run.batches(range(2)):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    weights = ema.weights()
    assert torch.equal(weights["0.weight"], weights["1.weight"])
    assert not torch.equal(weights["0.weight"], model[0].weight)
    assert list(ema.state_dict()["averages"]) == ["0.weight"]


# Swapping


def test_averages_are_swapped_in_for_validation_and_prediction():
    ema, by_hand, given = pair()
    own = InferenceRunner([(INPUTS[:4], TARGETS[:4])], [ScalarStats("loss")])
    runner = None

    class Looks(Callback):
        def on_epoch_end(self, run):
            before = clones(given["model"].state_dict())
            run.evaluate([(INPUTS[:4], TARGETS[:4])])
            runner.validate([(INPUTS[:4], TARGETS[:4])])
            runner.predict([(INPUTS[:4], TARGETS[:4])])
            for _ in runner.predict_iter([(INPUTS[:4], TARGETS[:4])] * 2):
                break
            assert same(given["model"].state_dict(), before)

    runner = runner_of(ema, own, Looks(), by_hand, **given)
    runner.fit((INPUTS, TARGETS), (INPUTS[:4], TARGETS[:4]), epochs=2, batch_size=4)
    assert by_hand.seen == ["val", "val", "val", "val", "pred", "pred", "trained"] * 2
    by_hand.seen.clear()
    runner.validate([(INPUTS[:4], TARGETS[:4])])
    runner.predict([(INPUTS[:4], TARGETS[:4])])
    assert by_hand.seen == ["val", "pred"]
    assert same(given["model"].state_dict(), by_hand.trained)


def test_averages_are_swapped_in_for_nested_and_mid_epoch_validation():
    ema, by_hand, given = pair()

    class Nests(Callback):
        def on_val_iter_end(self, run):
            if run.progress.total == 2:
                run.evaluate([(INPUTS[:4], TARGETS[:4])])
                assert same(given["model"].state_dict(), by_hand.averages)

    fit(ema, Nests(), by_hand, validate_every=Every(steps=4), **given)
    assert by_hand.seen.count("val") == 4 * 4
    assert "WRONG" not in by_hand.seen
    assert same(given["model"].state_dict(), by_hand.trained)


def test_validation_metrics_are_those_of_the_averages():
    ema, _, given = pair()
    runner = fit(ema, **given)
    found = runner.validate((INPUTS, TARGETS), batch_size=24)["val_loss"]
    other, _ = make(seed=5)
    other.load_state_dict(ema.weights())
    other.eval()
    assert found == pytest.approx(nn.functional.cross_entropy(other(INPUTS), TARGETS).item(), rel=1e-6)


def test_swap_on_epoch_swaps_for_later_callbacks_but_not_for_checkpoints(tmp_path):
    ema, by_hand, given = pair(swap_on_epoch=True)
    before = ByHand(given["model"])
    fit(before, ema, by_hand, ModelSaver(), workdir=tmp_path, **given)
    assert [one for one in by_hand.seen if one != "val"] == ["averages"] * 3
    assert [one for one in before.seen if one not in ("val", "WRONG")] == ["trained"] * 3
    assert same(dict(sorted(hookpoint.load_weights(tmp_path).items())), dict(sorted(by_hand.trained.items())))
    assert same(given["model"].state_dict(), by_hand.trained)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_early_stopping_restores_the_averages_it_measured(mode):
    ema, by_hand, given = pair(swap_on_epoch=True)
    stopping = EarlyStopping("val_loss", patience=9, mode=mode, restore_best_weights=True)
    best, sign = {}, 1 if mode == "min" else -1

    class Keeps(Callback):
        def on_epoch_end(self, run):
            if not best or sign * run.metrics["val_loss"] < sign * best["value"]:
                best.update(value=run.metrics["val_loss"], weights=clones(by_hand.averages))

    runner = fit(ema, stopping, by_hand, Keeps(), epochs=4, **given)
    assert stopping.best.step == (24 if mode == "min" else 6)  # the last epoch, or the first
    assert same(given["model"].state_dict(), best["weights"])
    assert runner.validate((INPUTS[:8], TARGETS[:8]), batch_size=4)["val_loss"] == pytest.approx(best["value"], rel=1e-6)


def test_restoring_weights_other_than_the_measured_ones_warns(caplog):
    words = "EarlyStopping(val_loss) would restore the training weights"

    def stopping():
        return EarlyStopping("val_loss", patience=9, restore_best_weights=True)

    fit(SwapEMAWeights(swap_on_epoch=True), stopping(), epochs=1)
    assert words not in caplog.text
    fit(stopping(), SwapEMAWeights(swap_on_epoch=True), epochs=1)
    assert caplog.text.count(words) == 1
    fit(SwapEMAWeights(), stopping(), epochs=1)
    assert caplog.text.count(words) == 2


def test_with_two_callbacks_the_later_averages_are_used_in_validation():
    ema, by_hand, given = pair()
    fit(SwapEMAWeights(0.5, name="other", swap_on_epoch=True), ema, by_hand, **given)
    assert [one for one in by_hand.seen if one == "val"] == ["val"] * 6
    assert same(ema.weights(), by_hand.averages)
    assert same(given["model"].state_dict(), by_hand.trained)


# Ends of a pass


class Boom(Exception):
    """Raised in a validation pass."""


class Fails(Callback):
    def __init__(self, at):
        self._at = at

    def on_val_epoch_begin(self, run):
        self._fail("on_val_epoch_begin")

    def on_val_iter_begin(self, run):
        self._fail("on_val_iter_begin")

    def on_val_epoch_end(self, run):
        self._fail("on_val_epoch_end")

    def _fail(self, point):
        if point == self._at:
            raise Boom(point)


@pytest.mark.parametrize("point", ["on_val_epoch_begin", "on_val_iter_begin", "on_val_epoch_end"])
def test_an_exception_in_validation_restores_the_training_weights(point):
    ema, by_hand, given = pair()
    with pytest.raises(Boom):
        fit(ema, by_hand, Fails(point), **given)
    assert same(given["model"].state_dict(), by_hand.trained)
    assert same(ema.weights(), by_hand.averages)


@pytest.mark.parametrize("point", ["on_val_epoch_begin", "on_val_iter_begin", "on_val_epoch_end"])
def test_training_continues_with_its_weights_after_a_contained_exception(point):
    ema, by_hand, given = pair()

    class Contains(Callback):
        caught = 0

        def on_train_iter_end(self, run):
            try:
                run.evaluate([(INPUTS[:4], TARGETS[:4])])
            except Boom:
                Contains.caught += 1

    runner = runner_of(ema, by_hand, Contains(), Fails(point), **given)
    runner.fit((INPUTS, TARGETS), epochs=2, batch_size=4)
    assert Contains.caught == 12
    bare = runner_of()
    bare.fit((INPUTS, TARGETS), epochs=2, batch_size=4)
    assert same(given["model"].state_dict(), bare.model.state_dict())
    assert same(ema.weights(), by_hand.averages)


def own_loop(ema, validate, epochs=2):
    """Train in your own loop with this validation before each step; return the weights at the end."""
    model, optimizer = make()
    with Loop([ema] if ema else [], model=model, optimizer=optimizer, extra_callbacks=[], monitors=[]) as run:
        for _ in run.epochs(epochs):
            for inputs, targets in run.batches([(INPUTS[at : at + 4], TARGETS[at : at + 4]) for at in range(0, 24, 4)]):
                validate(run, model)
                loss = nn.functional.cross_entropy(model(inputs), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return clones(model.state_dict())


def swallowed(run, model):
    try:
        for number, (inputs, _) in enumerate(run.batches([(INPUTS[:4], TARGETS[:4])] * 3, mode="val")):
            model.eval()(inputs)
            if number == 1:
                raise Boom
    except Boom:
        pass
    model.train()


def swallowed_further_out(run, model):
    def deeper():
        for inputs, _ in run.batches([(INPUTS[:4], TARGETS[:4])] * 3, mode="val"):
            model.eval()(inputs)
            raise Boom

    with pytest.raises(Boom):  # pytest.raises keeps the frames of the error alive
        deeper()
    model.train()


def broken_off(run, model):
    for inputs, _ in run.batches([(INPUTS[:4], TARGETS[:4])] * 3, mode="val"):
        model.eval()(inputs)
        break
    model.train()


def in_inference_mode(run, model):
    with torch.inference_mode():
        for inputs, _ in run.batches([(INPUTS[:4], TARGETS[:4])] * 3, mode="val"):
            model.eval()(inputs)
    model.train()


@pytest.mark.parametrize("validate", [swallowed, swallowed_further_out, broken_off, in_inference_mode])
def test_training_in_your_own_loop_continues_with_its_weights(validate):
    assert same(own_loop(SwapEMAWeights(DECAY), validate), own_loop(None, validate))


def test_validation_between_forward_and_backward_changes_no_gradient():
    def train(*callbacks):
        model, optimizer = make()
        with Loop(callbacks, model=model, optimizer=optimizer, extra_callbacks=[], monitors=[]) as run:
            for _ in run.batches(range(6)):
                loss = nn.functional.cross_entropy(model(INPUTS), TARGETS)
                broken_off(run, model)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return clones(model.state_dict())

    assert same(train(SwapEMAWeights(DECAY)), train())


@pytest.mark.parametrize("how", ["foreach", "fused"])
def test_a_step_during_an_open_pass_raises(how):
    model, _ = make()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, **{how: True})
    ema, trained = SwapEMAWeights(DECAY), {}
    with (
        pytest.raises(BadLoop, match="the weights were changed during a validation or prediction pass") as raised,
        Loop([ema], model=model, optimizer=optimizer, extra_callbacks=[], monitors=[]) as run,
    ):
        for number, inputs in enumerate(run.batches([INPUTS] * 4)):
            if number == 2:
                trained.update(clones(dict(model.named_parameters())))
                held = run.batches([INPUTS] * 3, mode="val")
                next(held)
            model(inputs).sum().backward()
            optimizer.step()
    assert "with a break before training continues, and do not keep a reference to run.batches(...)" in str(raised.value)
    assert same(clones(dict(model.named_parameters())), trained)


def test_a_step_that_the_run_did_not_see_raises_at_the_end_of_the_pass():
    model, optimizer = make()
    with (
        pytest.raises(BadLoop, match="the weights were changed"),
        Loop([SwapEMAWeights(DECAY)], model=model, extra_callbacks=[], monitors=[]) as run,
    ):
        for inputs in run.batches([INPUTS] * 4):
            held = run.batches([INPUTS] * 3, mode="val")
            next(held)
            model(inputs).sum().backward()
            optimizer.step()


@pytest.mark.parametrize("number", [1, 2])
def test_ctrl_c_in_validation_restores_the_training_weights(number):
    ema, by_hand, given = pair()

    class Sends(Callback):
        def on_val_iter_begin(self, run):
            for _ in range(number):
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fit(ema, by_hand, Sends(), **given)
    assert same(given["model"].state_dict(), by_hand.trained)


def test_a_signal_in_validation_saves_the_training_weights(tmp_path):
    ema, by_hand, given = pair()

    class Sends(Callback):
        def on_val_iter_begin(self, run):
            if run.epoch == 2 and run.batch_idx == 0:
                assert same(given["model"].state_dict(), by_hand.averages)
                signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit):
        fit(ema, by_hand, Sends(), ModelSaver(), workdir=tmp_path, **given)
    assert same(given["model"].state_dict(), by_hand.trained)
    assert same(dict(sorted(hookpoint.load_weights(tmp_path).items())), dict(sorted(by_hand.trained.items())))
    averages = hookpoint.load_weights(tmp_path, averaged=True)
    assert same(dict(sorted(averages.items())), dict(sorted(by_hand.averages.items())))


# Checkpoints and the end of the run


@pytest.mark.parametrize("in_background", [False, True])
def test_a_run_interrupted_in_validation_resumes_exactly(in_background, tmp_path):
    class Cuts(Callback):
        def on_val_iter_begin(self, run):
            if run.step == 10:
                raise Boom

    def train(folder, *more):
        ema, _, given = pair()
        saver = ModelSaver(async_save=in_background).when(Every(steps=3))
        fit(ema, saver, *more, workdir=folder, validate_every=Every(steps=2), **given)
        return ema.weights(), clones(given["model"].state_dict()), ema.updates

    whole = train(tmp_path / "whole")
    with pytest.raises(Boom):
        train(tmp_path / "cut", Cuts())
    resumed = train(tmp_path / "cut")
    assert same(whole[0], resumed[0])
    assert same(whole[1], resumed[1])
    assert whole[2] == resumed[2] == 18


def test_a_callback_added_to_a_resumed_run_starts_averaging_there(tmp_path):
    fit(ModelSaver(), workdir=tmp_path, epochs=1)
    model, optimizer = make()
    ema = SwapEMAWeights(DECAY)
    fit(ema, ModelSaver(), workdir=tmp_path, epochs=2, model=model, optimizer=optimizer)
    assert ema.updates == 6


def test_keep_at_end_leaves_the_averages_in_the_model_but_not_the_checkpoint(tmp_path):
    ema, by_hand, given = pair(keep_at_end=True)
    fit(ema, by_hand, ModelSaver(), workdir=tmp_path, **given)
    assert same(given["model"].state_dict(), by_hand.averages)
    assert same(dict(sorted(hookpoint.load_weights(tmp_path).items())), dict(sorted(by_hand.trained.items())))
    model, optimizer = make()
    longer = fit(SwapEMAWeights(DECAY), ModelSaver(), workdir=tmp_path, epochs=5, model=model, optimizer=optimizer)
    assert same(longer.model.state_dict(), fit(epochs=5).model.state_dict())


def test_after_an_exception_keep_at_end_has_no_effect():
    ema, by_hand, given = pair(keep_at_end=True)
    with pytest.raises(Boom):
        fit(ema, by_hand, Fails("on_val_epoch_end"), **given)
    assert same(given["model"].state_dict(), by_hand.trained)


def test_two_callbacks_that_set_the_final_weights_raise():
    with pytest.raises(BadLoop, match=r"both replace the weights at the end of the run.\n  drop"):
        fit(SwapEMAWeights(keep_at_end=True), EarlyStopping(restore_best_weights=True))


def test_weights_loaded_after_the_run_are_not_swapped(caplog):
    caplog.set_level("INFO", "hookpoint")
    ema, _, given = pair()
    runner = fit(ema, **given)
    other, _ = make(seed=3)
    given["model"].load_state_dict(other.state_dict())
    found = runner.validate((INPUTS, TARGETS), batch_size=24)["val_loss"]
    other.eval()
    assert found == pytest.approx(nn.functional.cross_entropy(other(INPUTS), TARGETS).item(), rel=1e-6)
    assert "the weights have changed since the run" in caplog.text


def test_another_runner_with_another_model_is_not_affected():
    ema, _, given = pair()
    fit(ema, **given)
    other, optimizer = make(seed=3)
    before = clones(other.state_dict())
    runner_of(ema, model=other, optimizer=optimizer).validate((INPUTS, TARGETS), batch_size=24)
    assert same(clones(other.state_dict()), before)


def test_a_second_run_starts_from_scratch_and_a_pickle_keeps_the_averages():
    ema, _, given = pair()
    fit(ema, **given)
    again = pickle.loads(pickle.dumps(ema))
    assert same(again.state_dict()["averages"], ema.state_dict()["averages"])
    _, by_hand, given = pair()
    fit(ema, by_hand, **given)
    assert same(ema.weights(), by_hand.averages)
    assert ema.updates == 18


def test_load_weights_returns_the_averages_of_a_checkpoint(tmp_path):
    ema, by_hand, given = pair()
    fit(ema, ModelSaver(), by_hand, workdir=tmp_path, **given)
    model, _ = make(seed=9)
    model.load_state_dict(hookpoint.load_weights(tmp_path, averaged=True))
    assert same(model.state_dict(), by_hand.averages)
    model.load_state_dict(hookpoint.load_weights(tmp_path, averaged="SwapEMAWeights"))


# Errors


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"decay": 1.0}, "decay must be below 1"),
        ({"decay": -0.1}, "decay must be a finite number >= 0, got -0.1"),
        ({"decay": float("nan")}, "decay must be a finite number >= 0, got nan"),
        ({"every": 0}, "every must be an integer >= 1, got 0"),
        ({"start": -1}, "start must be an integer >= 0, got -1"),
        ({"buffers": "both"}, "buffers must be 'average' or 'copy'"),
    ],
)
def test_invalid_arguments_raise(given, words):
    with pytest.raises(ValueError, match=words):
        SwapEMAWeights(**given)


def test_a_loop_without_a_model_raises():
    with pytest.raises(BadLoop, match=r"SwapEMAWeights found no weights.\n  give"), Loop([SwapEMAWeights()]):
        pass
