"""The run as seen through the Keras callback interface; classes with Keras's names replace Keras itself."""

from __future__ import annotations

import pytest

from hookpoint import Callback, Loop
from hookpoint import callbacks as cb
from hookpoint.core.errors import CompileError, HookpointError, NotOffered

EVENTS = (
    *("on_train_begin", "on_train_end", "on_epoch_begin", "on_epoch_end", "on_train_batch_begin", "on_train_batch_end"),
    *("on_test_begin", "on_test_end", "on_test_batch_begin", "on_test_batch_end"),
)


class Base:
    """The interface of keras.callbacks.Callback."""

    __module__, __qualname__ = "keras.src.callbacks.callback", "Callback"

    def set_params(self, params):
        self.params = params

    def set_model(self, model):
        self.model = model

    def on_batch_end(self, batch, logs=None):
        pass

    def on_train_batch_end(self, batch, logs=None):
        self.on_batch_end(batch, logs=logs)


for _event in EVENTS:
    if not hasattr(Base, _event):
        setattr(Base, _event, lambda self, *args, **kwargs: None)


def recorder(*events):
    """Return a callback that records its calls."""
    calls = []
    record = {event: lambda self, *args, e=event, **kwargs: calls.append((e, *args, *kwargs.values())) for event in events}
    return type("Recorder", (Base,), {**record, "calls": calls})()


def at(event, function, **attributes):
    """Return a callback that calls a function with itself and the arguments at an event."""
    return type("Mine", (Base,), {event: function, **attributes})()


class Stepper:
    """A model and optimizer without torch."""

    def __init__(self):
        self.weights = [1.0]
        self.param_groups = [{"lr": 0.5}]

    def get_weights(self):
        return list(self.weights)

    def set_weights(self, weights):
        self.weights = list(weights)


def train(callbacks, *, losses=(4.0, 2.0, 3.0), workdir=None, model=None, optimizer=None, until=None):
    """Run a loop of two batches per epoch, with the losses as both the training and the validation loss."""
    loop = Loop(callbacks, extra_callbacks=[], monitors=[], workdir=workdir, model=model, optimizer=optimizer)
    with loop as run:
        for epoch in run.epochs(len(losses)):
            for _ in run.batches([1, 2]):
                run.log(loss=losses[epoch - 1])
            for _ in run.batches([1], mode="val"):
                run.log(loss=losses[epoch - 1])
            if epoch == until:
                break
    return run


def test_epochs_and_batches_count_from_0_and_logs_have_keras_names():
    theirs = recorder(*EVENTS)
    train([theirs], losses=(4.0, 2.0))
    assert theirs.params == {"epochs": 2, "steps": 2, "verbose": 1}
    assert theirs.calls[0] == ("on_train_begin", {})
    assert theirs.calls[1:9] == [
        ("on_epoch_begin", 0, {}),
        ("on_train_batch_begin", 0, {}),
        ("on_train_batch_end", 0, {"loss": 4.0}),
        ("on_train_batch_begin", 1, {}),
        ("on_train_batch_end", 1, {"loss": 4.0}),
        ("on_test_begin", {}),
        ("on_test_batch_begin", 0, {}),
        ("on_test_batch_end", 0, {"loss": 4.0}),
    ]
    assert theirs.calls[9:12] == [
        ("on_test_end", {"loss": 4.0}),
        ("on_epoch_end", 0, {"loss": 4.0, "val_loss": 4.0}),
        ("on_epoch_begin", 1, {}),
    ]
    assert theirs.calls[-2:] == [
        ("on_epoch_end", 1, {"loss": 2.0, "val_loss": 2.0}),
        ("on_train_end", {"loss": 2.0, "val_loss": 2.0}),
    ]


def test_the_legacy_name_on_batch_end_is_called():
    batches = []
    train([at("on_batch_end", lambda self, batch, logs=None: batches.append((batch, logs["loss"])))], losses=(4.0,))
    assert batches == [(0, 4.0), (1, 4.0)]


def test_callbacks_share_the_logs_of_an_epoch():
    def add(self, epoch, logs=None):
        logs["added"] = epoch

    class Later(Callback):
        def on_epoch_end(self, run):
            run.log(later=1.0)

    seen = recorder("on_epoch_end")
    train([at("on_epoch_end", add), Later(), seen], losses=(4.0,))
    assert seen.calls == [("on_epoch_end", 0, {"loss": 4.0, "val_loss": 4.0, "added": 0, "later": 1.0})]


def test_stop_training_stops_the_run_and_names_the_callback():
    def stop(self, epoch, logs=None):
        self.model.stop_training = epoch == 1

    run = train([at("on_epoch_end", stop)])
    assert (run.epoch, run.stop_reason) == (2, "Mine set model.stop_training")


def test_the_learning_rate_of_the_run_can_be_read_and_set():
    def halve(self, epoch, logs=None):
        assert self.model.optimizer.iterations == 2 * epoch
        self.model.optimizer.learning_rate = self.model.optimizer.learning_rate * 0.5
        if epoch == 1:
            self.model.optimizer.learning_rate.assign(0.01)

    optimizer = Stepper()
    train([at("on_epoch_begin", halve)], losses=(1.0, 1.0), optimizer=optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.01


def test_weights_can_be_read_and_set():
    def swap(self, logs=None):
        self.model.set_weights([2 * weight for weight in self.model.get_weights()])

    model = Stepper()
    train([at("on_train_end", swap)], losses=(1.0,), model=model)
    assert model.weights == [2.0]


def test_an_unsupported_attribute_raises_and_lists_the_supported_ones():
    def use(self, epoch, logs=None):
        self.model.summary()

    with pytest.raises(NotOffered) as raised:
        train([at("on_epoch_end", use)])
    assert str(raised.value).splitlines() == [
        "Mine uses self.model.summary, which a hookpoint run does not offer.",
        "  offered   get_weights, history, metrics, optimizer, set_weights, stop_training",
    ]
    assert (raised.value.callback, raised.value.attribute) == ("Mine", "self.model.summary")
    assert isinstance(raised.value, HookpointError)
    assert isinstance(raised.value, AttributeError)


def test_unsupported_attributes_cannot_be_set_and_hasattr_is_false():
    def use(self, epoch, logs=None):
        assert not hasattr(self.model, "built")
        assert getattr(self.model.optimizer, "optimizers", None) is None
        self.model.optimizer.clipnorm = 1.0

    with pytest.raises(
        NotOffered, match=r"^Mine uses self.model.optimizer.clipnorm = ..., which .* does not let callbacks set"
    ):
        train([at("on_epoch_end", use)])


def test_weights_of_a_model_without_weights_raise():
    with pytest.raises(NotOffered, match="but a NoneType has neither get_weights nor state_dict"):
        train([at("on_epoch_end", lambda self, epoch, logs=None: self.model.get_weights())])


def test_on_train_end_is_not_called_after_an_error():
    class Fails(Callback):
        def on_epoch_end(self):
            raise ValueError("mine")

    theirs = recorder("on_train_begin", "on_train_end")
    with pytest.raises(ValueError, match="mine"):
        train([theirs, Fails()])
    assert theirs.calls == [("on_train_begin", {})]
    train([theirs], losses=(1.0,))
    assert theirs.calls[1:] == [("on_train_begin", {}), ("on_train_end", {"loss": 1.0, "val_loss": 1.0})]


def test_a_standalone_validation_has_a_model():
    torch = pytest.importorskip("torch")
    from hookpoint import Runner

    theirs = recorder("on_test_begin", "on_test_end", "on_train_begin")
    model = torch.nn.Linear(1, 1)
    data = torch.ones(2, 1), torch.ones(2, 1)
    runner = Runner(model, criterion=torch.nn.functional.mse_loss, callbacks=[theirs], extra_callbacks=[], monitors=[])
    loss = runner.validate(data, batch_size=2)["val_loss"]
    assert theirs.calls == [("on_test_begin", {}), ("on_test_end", {"loss": loss})]
    assert theirs.model.get_weights()[0].tolist() == model.weight.tolist()


def test_a_saver_of_keras_models_raises_before_training():
    theirs = type("ModelCheckpoint", (Base,), {"__module__": "keras.src.callbacks.model_checkpoint"})()
    with pytest.raises(CompileError, match=r"^ModelCheckpoint \(Keras\) saves Keras models only.\n  use "):
        train([theirs])


def test_counters_are_restored_after_on_train_begin_resets_them(tmp_path):
    class EarlyStopping(Base):
        """A short version of Keras's EarlyStopping."""

        __module__ = "keras.src.callbacks.early_stopping"

        def __init__(self):
            self.min_delta, self.sign = 1.0, 1

        def on_train_begin(self, logs=None):
            self.wait, self.best, self.best_epoch, self.stopped_epoch = 0, None, 0, 0

        def on_epoch_end(self, epoch, logs=None):
            self.wait += 1
            if self.best is None or logs["val_loss"] < self.best:
                self.best, self.best_epoch, self.wait = logs["val_loss"], epoch, 0
            if self.wait >= 3:
                self.stopped_epoch, self.model.stop_training = epoch, True

    losses = (4.0, 2.0, 3.0, 3.0, 3.0, 3.0, 3.0)
    assert train([EarlyStopping()], losses=losses).epoch == 5
    train([EarlyStopping(), cb.ModelSaver()], losses=losses, workdir=tmp_path, until=3)
    resumed = EarlyStopping()
    run = train([resumed, cb.ModelSaver()], losses=losses, workdir=tmp_path)
    assert (run.epoch, run.stop_reason) == (5, "EarlyStopping set model.stop_training")
    assert (resumed.best, resumed.best_epoch, resumed.wait, resumed.stopped_epoch) == (2.0, 1, 3, 4)


def test_an_object_with_its_own_state_dict_keeps_its_state(tmp_path):
    class Counter(Base):
        seen = 0

        def on_epoch_end(self, epoch, logs=None):
            self.seen += 1

        def state_dict(self):
            return {"seen": self.seen}

        def load_state_dict(self, state):
            self.seen = state["seen"]

    train([Counter(), cb.ModelSaver()], workdir=tmp_path, until=2)
    resumed = Counter()
    train([resumed, cb.ModelSaver()], workdir=tmp_path)
    assert resumed.seen == 3
