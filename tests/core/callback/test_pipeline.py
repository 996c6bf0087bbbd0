"""A pipeline is a callback made of callbacks."""

from __future__ import annotations

import pickle

import pytest

from hookpoint import Callback, CallbackPipeline, Every, Hooks, LambdaCallback, errors, on


class Say(Callback):
    def __init__(self, word, said):
        self.word, self.said = word, said

    def on_epoch_end(self):
        self.said.append(self.word)


class Trigger(Callback):
    def __init__(self, said):
        self.said = said

    def on_trigger(self, run):
        self.said.append(run.step)


class Kept(Callback):
    """Can be pickled."""


def test_get_pipeline_returns_the_callbacks():
    inner = [Callback(), CallbackPipeline([Callback()])]
    pipeline = CallbackPipeline(inner)
    assert pipeline.get_pipeline() == inner


def test_changing_the_given_or_returned_list_does_not_change_a_pipeline():
    given = [Callback()]
    pipeline = CallbackPipeline(given)
    given.clear()
    pipeline.get_pipeline().clear()
    assert len(pipeline.get_pipeline()) == 1


def test_a_pipeline_accepts_a_generator():
    pipeline = CallbackPipeline(Callback() for _ in range(3))
    assert len(pipeline.get_pipeline()) == len(pipeline.get_pipeline()) == 3


def test_pipelines_nest_and_keep_their_order(train):
    said = []
    a, b, c, d = (Say(word, said) for word in "abcd")
    train([a, CallbackPipeline([b, CallbackPipeline([c])]), d])
    assert said == ["a", "b", "c", "d"]


def test_a_pipeline_can_be_passed_instead_of_a_list(train):
    said = []
    train(CallbackPipeline([Say("a", said), Say("b", said)]))
    assert said == ["a", "b"]


def test_an_empty_pipeline_does_nothing(train):
    train([CallbackPipeline()])
    assert CallbackPipeline().get_pipeline() == []
    assert CallbackPipeline().run("on_epoch_end") is None


def test_set_up_reaches_all_nested_callbacks(train):
    class Plain:
        def setup(self, component, save_path):
            self.component, self.save_path = component, save_path

        def on_epoch_end(self): ...

    inside = [Callback(), Plain()]
    outer = CallbackPipeline([CallbackPipeline(inside), LambdaCallback()])
    train([outer], model="model", workdir="here")
    assert [(one.component, one.save_path) for one in (outer, *inside)] == [("model", "here")] * 3


def test_set_up_skips_functions():
    @on("on_epoch_end")
    def function(): ...

    CallbackPipeline([function]).setup("model", None)


def test_run_calls_all_nested_callbacks_in_order():
    said = []

    class Plain:
        def on_hello(self, who):
            said.append(f"plain {who}")

    @on("on_hello")
    def function(who):
        said.append(f"function {who}")

    pipeline = CallbackPipeline([Plain(), CallbackPipeline([function]), LambdaCallback(on_hello=lambda who: said.append(who))])
    pipeline.run(hookpoint="on_hello", logs={"who": "world"})
    assert said == ["plain world", "function world", "world"]


def test_a_pipeline_schedule_applies_to_triggers_without_their_own(train):
    always, never, own = [], [], []
    inner = [Trigger(always), Say("end", never), Trigger(own).when(Every(steps=3))]
    train([CallbackPipeline(inner).when(Every(steps=2))], batches=range(6))
    assert always == [2, 4, 6]
    assert own == [3, 6]
    assert never == ["end"]


def test_the_innermost_schedule_applies(train):
    seen = []
    inner = CallbackPipeline([Trigger(seen)]).when(Every(steps=2))
    train([CallbackPipeline([inner]).when(Every(steps=3))], batches=range(6))
    assert seen == [2, 4, 6]


def test_a_schedule_without_an_on_trigger_inside_raises():
    with pytest.raises(errors.NoTrigger) as caught:
        Hooks([CallbackPipeline([Say("a", [])]).when(Every(steps=10))])
    assert str(caught.value) == (
        "Say has no on_trigger for Every(steps=10) to call.\n"
        "  define    on_trigger in Say\n"
        "  write     @on(point, when=Every(steps=10)) above the method to schedule"
    )


def test_a_subclass_that_overrides_run_acts_as_one_callback(train):
    class Mute(CallbackPipeline):
        def run(self, hookpoint=None, logs=None):
            if hookpoint == "on_epoch_end":
                super().run(hookpoint, logs)

    said = []
    loud = LambdaCallback(on_run_begin=lambda: said.append("begin"), on_epoch_end=lambda: said.append("epoch"))
    train([Mute([loud])])
    assert said == ["epoch"]


def test_a_pipeline_can_be_pickled():
    pipeline = pickle.loads(pickle.dumps(CallbackPipeline([Kept(), CallbackPipeline([Kept()])], name="both")))
    assert pipeline.name == "both"
    assert [type(one) for one in pipeline.get_pipeline()] == [Kept, CallbackPipeline]


def test_a_class_inside_a_pipeline_raises_at_compile_time():
    with pytest.raises(errors.NotACallback, match="Kept is a class; expected an instance"):
        Hooks([CallbackPipeline([CallbackPipeline([Kept])])])
