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
    """Train a model of one's own; return the runner."""
    runner = runner_of(*callbacks, **options)
    data = {"batch_size": 4, "validate_every": validate_every}
    runner.fit((INPUTS, TARGETS), (INPUTS[:8], TARGETS[:8]), epochs=epochs, **data)
    return runner


def clones(state):
    return {name: value.detach().clone() for name, value in state.items()}


def same(one, other):
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


class ByHand(Callback):
    """Average as one would write it down, and look at what is in the model at each point that is named."""

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
    """Return a callback and one that does the same by hand, for a new model, and options of a runner with it."""
    model, optimizer = make()
    ema = SwapEMAWeights(options.pop("decay", DECAY), **options)
    return ema, ByHand(model, buffers=options.get("buffers") != "copy"), {"model": model, "optimizer": optimizer}


# The averages


@pytest.mark.parametrize("buffers", ["average", "copy"])
def test_they_are_those_that_are_made_by_hand_bit_for_bit_and_validation_is_done_with_them(buffers):
    ema, by_hand, given = pair(buffers=buffers)
    fit(ema, by_hand, **given)
    assert same(ema.weights(), by_hand.averages)
    assert same(given["model"].state_dict(), by_hand.trained)
    assert not same(by_hand.averages, by_hand.trained)
    assert by_hand.seen == ["val", "val", "trained"] * 3
    assert ema.updates == 18


def test_training_is_bitwise_what_it_is_without_it():
    validate = {"validate_every": Every(steps=2)}
    bare, averaged = fit(**validate), fit(SwapEMAWeights(DECAY, swap_on_epoch=True), **validate)
    assert same(bare.model.state_dict(), averaged.model.state_dict())


@pytest.mark.parametrize("options", [{"accumulate": 4}, {"precision": "bf16"}, {"clip_grad_norm": 0.1}], ids=str)
def test_a_step_is_an_optimizer_step(options):
    ema, by_hand, given = pair()
    fit(ema, by_hand, **given, **options)
    assert same(ema.weights(), by_hand.averages)
    assert ema.updates == (6 if "accumulate" in options else 18)


def test_it_begins_with_the_weights_after_the_step_that_is_said_and_skips_steps():
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


def test_a_run_that_ends_before_it_begins_says_so(caplog):
    ema = SwapEMAWeights(start=99)
    fit(ema, epochs=1)
    assert "the run ended at step 6, but averaging begins at step 99" in caplog.text
    with pytest.raises(OutsideRun, match="SwapEMAWeights has no averages yet"):
        ema.weights()


def test_the_warm_up_lets_the_first_updates_count_more():
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


def test_in_a_loop_without_an_optimizer_a_step_is_a_batch():
    model = nn.Linear(1, 1)
    ema = SwapEMAWeights(0.5)
    with Loop([ema], model=model, extra_callbacks=[], monitors=[]) as run:
        for _ in run.batches(range(3)):
            with torch.no_grad():
                model.weight.add_(1.0)
    assert ema.updates == 3


def test_weights_that_are_unfrozen_at_the_begin_of_an_epoch_have_the_average_they_would_have_had():
    ema, by_hand, given = pair()
    given["model"][0].requires_grad_(False)

    class Unfreezes(Callback):
        def on_epoch_begin(self, run):
            if run.epoch == 2:
                given["model"][0].requires_grad_(True)

    fit(Unfreezes(), ema, by_hand, **given)
    assert same(ema.weights(), by_hand.averages)
    assert "WRONG" not in by_hand.seen


def test_of_several_models_one_may_be_averaged_or_all():
    models = {"one": nn.Linear(1, 1), "two": nn.Linear(1, 1)}
    optimizer = torch.optim.SGD([*models["one"].parameters(), *models["two"].parameters()], lr=0.1)
    everything, a_part = SwapEMAWeights(0.5), SwapEMAWeights(0.5, model=models["two"], name="part")
    with Loop([everything, a_part], model=models, optimizer=optimizer, extra_callbacks=[], monitors=[]) as run:
        for _ in run.batches(range(3)):
            (models["one"](torch.ones(1, 1)) + models["two"](torch.ones(1, 1))).sum().backward()
            optimizer.step()
    assert list(everything.weights()) == ["one", "two"]
    assert same(everything.weights()["two"], a_part.weights())


def test_tied_weights_are_both_in_what_is_given_out():
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


# In and out


def test_they_are_in_for_every_kind_of_validation_and_prediction_and_out_again():
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


def test_validation_in_the_middle_of_an_epoch_and_inside_of_another_one():
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


def test_what_the_metric_says_is_what_the_averages_are_worth():
    ema, _, given = pair()
    runner = fit(ema, **given)
    found = runner.validate((INPUTS, TARGETS), batch_size=24)["val_loss"]
    other, _ = make(seed=5)
    other.load_state_dict(ema.weights())
    other.eval()
    assert found == pytest.approx(nn.functional.cross_entropy(other(INPUTS), TARGETS).item(), rel=1e-6)


def test_with_swap_on_epoch_they_are_in_for_those_who_follow_and_no_checkpoint_has_them_as_the_model(tmp_path):
    ema, by_hand, given = pair(swap_on_epoch=True)
    before = ByHand(given["model"])
    fit(before, ema, by_hand, ModelSaver(), workdir=tmp_path, **given)
    assert [one for one in by_hand.seen if one != "val"] == ["averages"] * 3
    assert [one for one in before.seen if one not in ("val", "WRONG")] == ["trained"] * 3
    assert same(dict(sorted(hookpoint.load_weights(tmp_path).items())), dict(sorted(by_hand.trained.items())))
    assert same(given["model"].state_dict(), by_hand.trained)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_early_stopping_keeps_the_averages_it_has_measured(mode):
    ema, by_hand, given = pair(swap_on_epoch=True)
    stopping = EarlyStopping("val_loss", patience=9, mode=mode, restore_best_weights=True)
    best, sign = {}, 1 if mode == "min" else -1

    class Keeps(Callback):
        def on_epoch_end(self, run):
            if not best or sign * run.metrics["val_loss"] < sign * best["value"]:
                best.update(value=run.metrics["val_loss"], weights=clones(by_hand.averages))

    runner = fit(ema, stopping, by_hand, Keeps(), epochs=4, **given)
    assert stopping.best.step == (24 if mode == "min" else 6)  # the last epoch, and the first
    assert same(given["model"].state_dict(), best["weights"])
    assert runner.validate((INPUTS[:8], TARGETS[:8]), batch_size=4)["val_loss"] == pytest.approx(best["value"], rel=1e-6)


def test_one_that_would_restore_other_weights_than_it_has_measured_is_named(caplog):
    words = "EarlyStopping(val_loss) would restore the training weights"

    def stopping():
        return EarlyStopping("val_loss", patience=9, restore_best_weights=True)

    fit(SwapEMAWeights(swap_on_epoch=True), stopping(), epochs=1)
    assert words not in caplog.text
    fit(stopping(), SwapEMAWeights(swap_on_epoch=True), epochs=1)
    assert caplog.text.count(words) == 1
    fit(SwapEMAWeights(), stopping(), epochs=1)
    assert caplog.text.count(words) == 2


def test_of_two_the_later_one_is_measured_and_both_are_out_again():
    ema, by_hand, given = pair()
    fit(SwapEMAWeights(0.5, name="other", swap_on_epoch=True), ema, by_hand, **given)
    assert [one for one in by_hand.seen if one == "val"] == ["val"] * 6
    assert same(ema.weights(), by_hand.averages)
    assert same(given["model"].state_dict(), by_hand.trained)


# However a pass ends


class Boom(Exception):
    """Comes out of a validation."""


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
def test_after_an_exception_in_validation_the_training_weights_are_back(point):
    ema, by_hand, given = pair()
    with pytest.raises(Boom):
        fit(ema, by_hand, Fails(point), **given)
    assert same(given["model"].state_dict(), by_hand.trained)
    assert same(ema.weights(), by_hand.averages)


@pytest.mark.parametrize("point", ["on_val_epoch_begin", "on_val_iter_begin", "on_val_epoch_end"])
def test_whoever_contains_the_exception_goes_on_with_the_training_weights(point):
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
    """Train in a loop of one's own, with this validation before each step; return the weights at the end."""
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

    with pytest.raises(Boom):  # which holds on to the frames of the error
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
def test_in_a_loop_of_ones_own_training_goes_on_with_its_weights(validate):
    assert same(own_loop(SwapEMAWeights(DECAY), validate), own_loop(None, validate))


def test_a_validation_between_forward_and_backward_changes_no_gradient():
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
def test_a_step_in_a_pass_that_is_still_open_is_an_error_and_not_a_wrong_step(how):
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


def test_a_step_that_nobody_saw_is_an_error_when_the_pass_ends():
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
def test_ctrl_c_twice_in_validation_is_no_way_to_keep_them_in(number):
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


# Checkpoints, and the end


@pytest.mark.parametrize("in_background", [False, True])
def test_a_checkpoint_in_the_middle_of_everything_has_both_and_goes_on_exactly(in_background, tmp_path):
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


def test_added_to_a_run_that_goes_on_it_begins_there(tmp_path):
    fit(ModelSaver(), workdir=tmp_path, epochs=1)
    model, optimizer = make()
    ema = SwapEMAWeights(DECAY)
    fit(ema, ModelSaver(), workdir=tmp_path, epochs=2, model=model, optimizer=optimizer)
    assert ema.updates == 6


def test_kept_at_the_end_they_are_in_the_model_and_the_last_checkpoint_has_the_training_weights(tmp_path):
    ema, by_hand, given = pair(keep_at_end=True)
    fit(ema, by_hand, ModelSaver(), workdir=tmp_path, **given)
    assert same(given["model"].state_dict(), by_hand.averages)
    assert same(dict(sorted(hookpoint.load_weights(tmp_path).items())), dict(sorted(by_hand.trained.items())))
    model, optimizer = make()
    longer = fit(SwapEMAWeights(DECAY), ModelSaver(), workdir=tmp_path, epochs=5, model=model, optimizer=optimizer)
    assert same(longer.model.state_dict(), fit(epochs=5).model.state_dict())


def test_after_an_exception_nothing_is_kept():
    ema, by_hand, given = pair(keep_at_end=True)
    with pytest.raises(Boom):
        fit(ema, by_hand, Fails("on_val_epoch_end"), **given)
    assert same(given["model"].state_dict(), by_hand.trained)


def test_two_who_say_what_the_model_ends_with_are_refused():
    with pytest.raises(BadLoop, match=r"both replace the weights at the end of the run.\n  drop"):
        fit(SwapEMAWeights(keep_at_end=True), EarlyStopping(restore_best_weights=True))


def test_weights_that_were_loaded_after_the_run_are_left_alone(caplog):
    caplog.set_level("INFO", "hookpoint")
    ema, _, given = pair()
    runner = fit(ema, **given)
    other, _ = make(seed=3)
    given["model"].load_state_dict(other.state_dict())
    found = runner.validate((INPUTS, TARGETS), batch_size=24)["val_loss"]
    other.eval()
    assert found == pytest.approx(nn.functional.cross_entropy(other(INPUTS), TARGETS).item(), rel=1e-6)
    assert "the weights have changed since the run" in caplog.text


def test_in_another_runner_it_leaves_another_model_alone():
    ema, _, given = pair()
    fit(ema, **given)
    other, optimizer = make(seed=3)
    before = clones(other.state_dict())
    runner_of(ema, model=other, optimizer=optimizer).validate((INPUTS, TARGETS), batch_size=24)
    assert same(clones(other.state_dict()), before)


def test_a_second_run_begins_anew_and_a_pickled_one_knows_its_averages():
    ema, _, given = pair()
    fit(ema, **given)
    again = pickle.loads(pickle.dumps(ema))
    assert same(again.state_dict()["averages"], ema.state_dict()["averages"])
    _, by_hand, given = pair()
    fit(ema, by_hand, **given)
    assert same(ema.weights(), by_hand.averages)
    assert ema.updates == 18


def test_load_weights_finds_the_averages_of_a_checkpoint(tmp_path):
    ema, by_hand, given = pair()
    fit(ema, ModelSaver(), by_hand, workdir=tmp_path, **given)
    model, _ = make(seed=9)
    model.load_state_dict(hookpoint.load_weights(tmp_path, averaged=True))
    assert same(model.state_dict(), by_hand.averages)
    model.load_state_dict(hookpoint.load_weights(tmp_path, averaged="SwapEMAWeights"))


# Mistakes


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
def test_what_means_nothing_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        SwapEMAWeights(**given)


def test_a_loop_without_a_model_is_refused():
    with pytest.raises(BadLoop, match=r"SwapEMAWeights found no weights.\n  give"), Loop([SwapEMAWeights()]):
        pass
