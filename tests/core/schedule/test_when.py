from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookpoint import After, At, Before, Between, Callback, Every, If, LambdaCallback, Once, on
from hookpoint.core.errors import BadSchedule
from hookpoint.core.loop.loop import Loop

pytestmark = pytest.mark.filterwarnings("ignore:this train pass has no batches")


class Trigger(Callback):
    """Record where it was triggered: (epoch, iteration, "iter" or "epoch")."""

    def __init__(self):
        self.seen = []

    def on_trigger(self, run):
        self.seen.append((run.epoch, run.iteration, "iter" if run.mode == "train" else "epoch"))

    @property
    def steps(self):
        return [iteration for _, iteration, _ in self.seen]


# What a schedule means, by example: four epochs of three batches of two samples


@pytest.mark.parametrize(
    ("schedule", "steps"),
    [
        (Every(steps=4), [4, 8, 12]),
        (Every(iterations=5), [5, 10]),
        (Every(samples=6), [3, 6, 9, 12]),
        (Every(samples=5), [3, 5, 8, 10]),
        (At(steps=[1, 7, 100]), [1, 7]),
        (At(steps=[7, 1, 7]), [1, 7]),
        (At(samples=9), [5]),
        (At(steps=[]), []),
        (Once(), [1]),
        (Once(steps=8), [8]),
        (After(steps=10), [10, 11, 12]),
        (Before(steps=3), [1, 2]),
        (Between(steps=(3, 6)), [3, 4, 5]),
        (Every(steps=3) & After(steps=6), [6, 9, 12]),
        (Every(steps=3) & ~After(steps=6), [3]),
        (Every(steps=4) | At(steps=[1, 4]), [1, 4, 8, 12]),
        (Every(steps=2) & Every(steps=3), [6, 12]),
        (~Every(steps=2), [1, 3, 5, 7, 9, 11]),
        (Every(steps=2) & ~Every(steps=4), [2, 6, 10]),
        (Every(steps=4) & If(lambda run: run.step != 8), [4, 12]),
        (Once(steps=4) & If(lambda run: run.step > 6), [7]),
        (Every(steps=2) & After(epochs=1), [4, 6, 8, 10, 12]),
        (Every(steps=2) & Before(epochs=1), [2]),
        (Every(epochs=2), [6, 12]),
        (At(epochs=[1, 3]), [3, 9]),
        (Once(epochs=2), [6]),
        (After(epochs=3), [9, 12]),
        (Before(epochs=3), [3, 6]),
        (If(lambda run: run.epoch == 2), [6]),
        (If(lambda run: run.epoch == 2) & Every(steps=2), [4, 6]),
        ((Every(steps=5) | Every(epochs=2)) & After(epochs=2), [6, 10, 12]),
    ],
    ids=repr,
)
def test_a_trigger_runs_at_the_steps_of_its_schedule(schedule, steps, train):
    trigger = Trigger()
    train([trigger.when(schedule)], epochs=4, batches=[["a", "b"]] * 3)
    assert trigger.steps == steps


@pytest.mark.parametrize(
    ("schedule", "moments"),
    [
        (Every(steps=3), ["iter"]),
        (Every(iterations=3), ["iter"]),
        (Every(samples=3), ["iter"]),
        (Every(seconds=3), ["iter"]),
        (Every(epochs=1), ["epoch"]),
        (If(lambda run: run.iteration == 3), ["epoch"]),
        (Every(steps=3) | Every(epochs=1), ["iter", "epoch"]),
    ],
    ids=repr,
)
def test_epoch_schedules_fire_at_epoch_ends_and_others_at_iteration_ends(schedule, moments, time):
    trigger = Trigger()
    with Loop([trigger.when(schedule)]) as run:
        for _ in run.epochs(1):
            for _ in run.batches("abc"):
                time[0] += 1
    assert trigger.seen == [(1, 3, moment) for moment in moments]


@pytest.mark.parametrize(
    ("schedule", "epochs"),
    [
        (None, [1, 3, 4]),
        (Every(epochs=1), [1, 3, 4]),
        (Every(epochs=2), [4]),
        (At(epochs=[2, 4]), [4]),
        (Once(epochs=2), [3]),
    ],
    ids=repr,
)
def test_an_incomplete_epoch_triggers_nothing_and_only_once_stays_due(schedule, epochs):
    trigger = Trigger() if schedule is None else Trigger().when(schedule)
    with Loop([trigger]) as run:
        for epoch in run.epochs(4):
            for _ in run.batches("abc"):
                if epoch == 2:
                    break
    assert [epoch for epoch, _, _ in trigger.seen] == epochs


def test_once_fires_at_the_first_end_of_an_iteration_or_epoch(train):
    with_batches, without = Trigger().when(Once()), Trigger().when(Once())
    for trigger, batches in ((with_batches, "ab"), (without, "")):
        train([trigger], epochs=2, batches=batches)
    assert (with_batches.seen, without.seen) == ([(1, 1, "iter")], [(1, 0, "epoch")])


def test_triggers_do_not_run_in_validation():
    trigger = Trigger()
    with Loop([trigger.when(~Every(steps=2))]) as run:
        for _ in run.batches("abc"):
            for _ in run.batches("de", mode="val"):
                pass
    assert trigger.steps == [1, 3]


# Time


@pytest.mark.parametrize(
    ("schedule", "unit"),
    [(Every(seconds=10), 1), (Every(minutes=0.5), 3), (Every(hours=1), 360), (At(seconds=[10, 20, 90]), 1)],
)
def test_several_overdue_time_ticks_fire_once_at_the_next_iteration(schedule, unit, time):
    trigger = Trigger()
    with Loop([trigger.when(schedule)]) as run:
        for seconds in run.batches([4, 4, 4, 30, 1, 7, 1]):  # the clock then shows 4, 8, 12, 42, 43, 50, 51
            time[0] += seconds * unit
    assert trigger.steps == ([3, 4] if isinstance(schedule, At) else [3, 4, 6])


ODD = If(lambda run: run.step % 2)


@pytest.mark.parametrize(
    ("schedule", "steps"),
    [
        (Every(seconds=4) & ODD, [5, 9]),
        ((Every(seconds=4) | Once(steps=100)) & ODD, [5, 9]),
        (Once(steps=4) & ODD, [5]),
        (Every(steps=4) & ODD, []),
        (At(steps=[2, 5]) & ODD, [5]),
    ],
    ids=repr,
)
def test_only_ticks_of_time_and_once_stay_due_until_they_fire(schedule, steps, time):
    trigger = Trigger()
    with Loop([trigger.when(schedule)]) as run:
        for _ in run.batches(range(9)):
            time[0] += 1
    assert trigger.steps == steps


@pytest.mark.parametrize("period", [0.1, 0.3, 0.7, 1 / 3])
def test_a_time_tick_never_fires_twice_despite_rounding(period, time):
    time[0] = 0.0
    trigger = Trigger()
    with Loop([trigger.when(Every(seconds=period))]) as run:
        for number in run.batches(range(400)):
            time[0] = number // 2 * period  # each multiple in two iterations
    multiples = [(step - 1) // 2 for step in trigger.steps]
    assert multiples == sorted(set(multiples))
    assert len(multiples) > 100


def test_time_before_the_run_is_not_counted(time):
    trigger = Trigger()
    loop = Loop([trigger.when(Every(seconds=10))])
    time[0] += 1000
    with loop as run:
        for _ in run.batches("abc"):
            time[0] += 4
    assert trigger.steps == [3]


# Scheduled handlers, shared schedules, fresh runs


def test_a_tick_fires_once_while_its_clock_stands_still():
    seen = []

    @on("on_iter_end", when=Every(steps=2))
    def look(run):
        seen.append((run.step, run.mode))

    with Loop([look]) as run:
        for _ in run.batches("abcd"):
            pass
        for _ in run.batches("xyz", mode="val"):
            pass
    assert seen == [(2, "train"), (4, "train")]


def test_a_method_can_have_its_own_schedule():
    class Mixed(Callback):
        def __init__(self):
            self.rare, self.often = [], []

        @on("on_train_iter_end", when=Every(steps=3) | At(steps=1))
        def look(self, run):
            self.rare.append(run.step)

        def on_train_iter_end(self, run):
            self.often.append(run.step)

    mixed = Mixed()
    with Loop([mixed]) as run:
        for _ in run.batches("abcdef"):
            pass
    assert (mixed.rare, mixed.often) == ([1, 3, 6], [1, 2, 3, 4, 5, 6])


def test_two_callbacks_can_share_a_schedule():
    shared = Every(steps=2)
    first, second = Trigger().when(shared), Trigger().when(shared)
    with Loop([first, second]) as run:
        for _ in run.batches("abcd"):
            pass
    assert first.steps == second.steps == [2, 4]


def test_a_fresh_run_of_the_same_loop_counts_from_the_start():
    trigger = Trigger().when(Once(steps=2))
    loop = Loop([trigger])
    for _ in range(2):
        with loop as run:
            for _ in run.batches("abc"):
                pass
    assert trigger.steps == [2, 2]


@pytest.mark.parametrize(
    ("schedule", "steps"),
    [
        (Every(steps=4), [8]),
        (Every(steps=5), [10]),
        (At(steps=[1, 3, 5, 7]), [7]),
        (Once(steps=5), []),
        (Once(steps=6), [6]),
        (Once(), []),
        (Every(steps=4) | At(steps=5), [8]),
        (Every(epochs=1), []),
        (After(steps=9), [9, 10]),
    ],
    ids=repr,
)
def test_a_run_that_starts_at_a_later_step_counts_from_there(schedule, steps):
    def five_steps_are_done(run):
        run._clocks.load_state_dict({"epoch": 1, "epochs_done": 1, "step": 5, "iteration": 5, "samples": 5, "elapsed": 1.0})

    trigger = Trigger().when(schedule)
    with Loop([LambdaCallback(on_setup=five_steps_are_done), trigger]) as run:
        for _ in run.batches(range(6)):
            if run.step == 9:
                break
    assert trigger.steps == steps


# Against a brute-force model


@dataclass(frozen=True)
class Moment:
    """An end of an iteration or of an epoch, and what the clocks show there."""

    kind: str
    iterations: int
    samples: int
    seconds: int
    epochs: int
    epochs_done: int
    complete: bool = True

    @property
    def steps(self):
        return self.iterations


@dataclass(frozen=True)
class Batch:
    samples: int
    seconds: int


def moments_of(plan):
    """Yield the moments of a plan: a list of epochs, with their batches and whether the last batch ends with a break."""
    iterations = samples = seconds = 0
    for epoch, (batches, is_cut) in enumerate(plan, start=1):
        for batch in batches:
            iterations, samples, seconds = iterations + 1, samples + batch.samples, seconds + batch.seconds
            yield Moment("iter", iterations, samples, seconds, epoch, epoch - 1)
        yield Moment("epoch", iterations, samples, seconds, epoch, epoch, complete=not (is_cut and batches))


class Model:
    """Determine by brute force when a schedule, given as nested tuples, is due."""

    def __init__(self, schedule):
        self.schedule = schedule
        self.last = {}  # per tick: its clock when it was last checked, or, for ticks that stay due, when it last fired

    def fires(self, moments):
        asked_at = kinds(self.schedule)
        for moment in moments:
            if moment.kind in asked_at:
                due = moment.complete and self.is_due(self.schedule, moment)
                self.move_on(self.schedule, moment, due)
                if due:
                    yield (moment.epochs, moment.iterations, moment.kind)

    def is_due(self, part, moment):
        match part:
            case ("and", *parts):
                return all(self.is_due(one, moment) for one in parts)
            case ("or", *parts):
                return any(self.is_due(one, moment) for one in parts)
            case ("not", one):
                return not self.is_due(one, moment)
            case ("If", number):
                return moment.iterations % number == 0
            case ("After" | "Before" | "Between" as level, clock, *bounds):
                shows = getattr(moment, "epochs_done" if clock == "epochs" else clock)
                low, high = {"After": (bounds[0], 1e9), "Before": (-1, bounds[0]), "Between": tuple(bounds)}[level]
                return low <= shows < high
            case (tick, clock, value):
                if (clock == "epochs") != (moment.kind == "epoch"):
                    return False
                shows, last = getattr(moment, clock), self.last.get(id(part), -1)
                if tick == "Once":
                    return shows >= value and last == -1
                values = range(value, shows + 1, value) if tick == "Every" else value
                return any(last < one <= shows for one in values)

    def move_on(self, part, moment, fired):
        match part:
            case ("and", *parts):
                for one in parts:
                    self.move_on(one, moment, fired)
            case ("or", *parts):
                for one in parts:
                    self.move_on(one, moment, fired and self.is_due(one, moment))
            case ("not", one):
                self.move_on(one, moment, True)
            case ("Every" | "At" | "Once" as tick, clock, _):
                stays = tick == "Once" or clock == "seconds"
                if (clock == "epochs") == (moment.kind == "epoch") and (not stays or (fired and self.is_due(part, moment))):
                    self.last[id(part)] = getattr(moment, clock)


def clocks_of(part, *, ticks):
    match part:
        case ("and" | "or", *parts):
            return set().union(*(clocks_of(one, ticks=ticks) for one in parts))
        case ("not", one):
            return set() if ticks else clocks_of(one, ticks=True) | clocks_of(one, ticks=False)
        case ("Every" | "At" | "Once", clock, *_):
            return {clock} if ticks else set()
        case ("If", _):
            return set()
        case (_, clock, *_):
            return set() if ticks else {clock}


def kinds(part):
    if part[0] == "or":
        return set().union(*map(kinds, part[1:]))
    clocks = clocks_of(part, ticks=True) or clocks_of(part, ticks=False) or {"epochs"}
    return {"epoch" if clock == "epochs" else "iter" for clock in clocks}


def negated(part):
    match part:
        case ("and" | "or", *parts):
            return set().union(*map(negated, parts))
        case ("not", one):
            return negated(one) | clocks_of(one, ticks=True)
    return set()


def has_ticks_that_hardly_meet(part):
    match part:
        case ("and", *parts):
            ticking = [clocks for one in parts if (clocks := clocks_of(one, ticks=True))]
            apart = len(ticking) > 1 and len(set().union(*ticking)) > 1
            unasked = {clock == "epochs" for clock in negated(part)} - {clock == "epochs" for clock in set().union(*ticking)}
            return apart or bool(ticking and unasked) or any(map(has_ticks_that_hardly_meet, parts))
        case ("or" | "not", *parts):
            return any(map(has_ticks_that_hardly_meet, parts))
    return False


def built(part):
    match part:
        case ("and", first, second):
            return built(first) & built(second)
        case ("or", first, second):
            return built(first) | built(second)
        case ("not", one):
            return ~built(one)
        case ("If", number):
            return If(lambda run: run.iteration % number == 0)
        case (name, clock, *values):
            kind = {"Every": Every, "At": At, "Once": Once, "After": After, "Before": Before, "Between": Between}[name]
            return kind(**{clock: values[0] if len(values) == 1 else tuple(values)})


clocks = st.sampled_from(["steps", "iterations", "samples", "epochs", "seconds"])
ticks = st.one_of(
    st.tuples(st.just("Every"), clocks, st.integers(1, 7)),
    st.tuples(st.just("Once"), clocks, st.integers(0, 9)),
    st.tuples(st.just("At"), clocks, st.lists(st.integers(0, 12), max_size=4).map(tuple)),
)
levels = st.one_of(
    st.tuples(st.sampled_from(["After", "Before"]), clocks, st.integers(0, 9)),
    st.tuples(st.just("Between"), clocks, st.integers(0, 4), st.integers(5, 12)),
    st.tuples(st.just("If"), st.integers(1, 4)),
)
everything = st.recursive(
    ticks | levels,
    lambda parts: st.one_of(
        st.tuples(st.just("and"), parts, levels),
        st.tuples(st.just("and"), parts, parts),
        st.tuples(st.just("or"), parts, parts),
        st.tuples(st.just("not"), parts),
    ),
    max_leaves=5,
)
schedules = everything.filter(lambda part: not has_ticks_that_hardly_meet(part))
batches = st.lists(st.builds(Batch, st.integers(1, 3), st.integers(0, 9)), max_size=5)
plans = st.lists(st.tuples(batches, st.booleans()), min_size=1, max_size=5)


def run_plan(trigger, plan, *, state=None):
    """Run the epochs of a plan from the given state, and return the state at the end."""
    time = [0.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hookpoint.core.schedule.clocks.perf_counter", lambda: time[0])
        with Loop([trigger]) as run:
            if state is not None:
                run._clocks.load_state_dict(state["clocks"])
                run.hooks.load_state_dict(state["callbacks"])
            for epoch in run.epochs(len(plan)):
                rest, is_cut = plan[epoch - 1]
                for _ in run.batches([["sample"] * one.samples for one in rest]):
                    time[0] += rest[run.batch_idx].seconds
                    if is_cut and run.batch_idx == len(rest) - 1:
                        break
            return {"clocks": run._clocks.state_dict(), "callbacks": run.hooks.state_dict()}


@settings(deadline=None, max_examples=3 * settings.default.max_examples)
@given(schedules, plans)
def test_a_schedule_fires_exactly_when_the_model_does(schedule, plan):
    trigger = Trigger().when(built(schedule))
    run_plan(trigger, plan)
    assert trigger.seen == list(Model(schedule).fires(moments_of(plan)))


@settings(deadline=None, max_examples=2 * settings.default.max_examples)
@given(schedules, plans, st.data())
def test_a_schedule_continues_after_its_state_is_saved_and_loaded(schedule, plan, data):
    first, second = Trigger().when(built(schedule)), Trigger().when(built(schedule))
    stop = data.draw(st.integers(1, len(plan)))
    state = json.loads(json.dumps(run_plan(first, plan[:stop])))
    run_plan(second, plan, state=state)
    assert first.seen + second.seen == list(Model(schedule).fires(moments_of(plan)))


@settings(deadline=None)
@given(everything)
def test_only_ticks_that_rarely_coincide_cannot_be_combined(schedule):
    if has_ticks_that_hardly_meet(schedule):
        with pytest.raises(BadSchedule, match=r"rarely coincide|are not checked at the same time"):
            built(schedule)
    else:
        built(schedule)


# Invalid schedules


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Every(steps=-5), "Every(steps=-5): steps must be an integer >= 1, got -5."),
        (lambda: Every(steps=0), "Every(steps=0): steps must be an integer >= 1, got 0."),
        (lambda: Every(steps=True), "Every(steps=True): steps must be an integer >= 1, got True."),
        (lambda: Every(steps=2.0), "Every(steps=2.0): steps must be an integer >= 1, got 2.0."),
        (lambda: Every(epochs="2"), "Every(epochs='2'): epochs must be an integer >= 1, got '2'."),
        (lambda: Every(minutes=0), "Every(minutes=0): minutes must be a number > 0, got 0."),
        (lambda: Every(hours=float("nan")), "Every(hours=nan): hours must be a number > 0, got nan."),
        (lambda: At(epochs=[1, -1]), "At(epochs=[1, -1]): epochs must be an integer >= 0, got -1."),
        (lambda: At(steps="12"), "At(steps='12'): steps must be an integer >= 0, got '12'."),
        (lambda: Once(steps=-1), "Once(steps=-1): steps must be an integer >= 0, got -1."),
        (lambda: After(seconds=-1), "After(seconds=-1): seconds must be a number >= 0, got -1."),
        (lambda: Before(steps=False), "Before(steps=False): steps must be an integer >= 0, got False."),
        (lambda: Between(steps=5), "Between(steps=5): expected two values.\n  write     Between(steps=(100, 200))"),
        (
            lambda: Between(steps=(5, 5)),
            "Between(steps=(5, 5)): the first value must be below the second.",
        ),
        (
            lambda: Every(step=5),
            (
                "Every: unknown clock 'step'.\n"
                "  clocks    steps, iterations, epochs, samples, seconds, minutes, hours\n"
                "  write     Every(steps=5)"
            ),
        ),
        (
            lambda: Every(days=1),
            "Every: unknown clock 'days'.\n  clocks    steps, iterations, epochs, samples, seconds, minutes, hours",
        ),
        (
            lambda: Every(),
            (
                "Every takes one clock, got none.\n"
                "  clocks    steps, iterations, epochs, samples, seconds, minutes, hours\n"
                "  combine   schedules with |, as in Every(steps=100) | Every(epochs=1)"
            ),
        ),
        (
            lambda: Once(steps=1, epochs=2),
            (
                "Once takes one clock, got epochs, steps.\n"
                "  clocks    steps, iterations, epochs, samples, seconds, minutes, hours\n"
                "  combine   schedules with |, as in Once(steps=100) | Once(epochs=1)"
            ),
        ),
        (
            lambda: Every(steps=5) & At(epochs=1),
            (
                "(Every(steps=5) & At(epochs=1)): ticks on epochs, steps rarely coincide.\n"
                "  combine   them with |\n"
                "  use       a level for one of them, as in Every(steps=100) & After(epochs=1)"
            ),
        ),
        *(
            (
                make,
                (
                    f"{text}: ticks on {negated} and ticks on {clock} are not checked at the same time.\n"
                    "  use       a function instead of the negated tick, as in Every(epochs=1) & If(lambda run: run.step % 20)"
                ),
            )
            for make, text, negated, clock in [
                (lambda: Every(epochs=1) & ~Every(steps=20), "(Every(epochs=1) & ~Every(steps=20))", "steps", "epochs"),
                (lambda: ~At(epochs=1) & Every(steps=2), "(~At(epochs=1) & Every(steps=2))", "epochs", "steps"),
                (lambda: Every(epochs=1) & ~~Every(steps=2), "(Every(epochs=1) & ~~Every(steps=2))", "steps", "epochs"),
            ]
        ),
        (
            lambda: bool(Every(steps=5)),
            "a schedule has no truth value.\n  combine   schedules with &, | and ~ instead of and, or, not",
        ),
        (
            lambda: Every(steps=5) | 3,
            "3 is not a schedule.\n  wrap      a function with If(...)",
        ),
        (lambda: If(True), "If: expected a function that takes the run, got True.\n  write     If(lambda run: ...)"),
    ],
)
def test_an_invalid_schedule_raises(make, message):
    with pytest.raises(BadSchedule) as caught:
        make()
    assert str(caught.value) == message
    assert isinstance(caught.value, ValueError)


def test_times_of_different_units_are_one_clock(time):
    trigger = Trigger()
    with Loop([trigger.when(Every(minutes=1) & Every(seconds=90))]) as run:
        for _ in run.batches(range(5)):
            time[0] += 30
    assert trigger.steps == [3]


@pytest.mark.parametrize(
    ("schedule", "shown"),
    [
        (Every(steps=5), "Every(steps=5)"),
        (Once(), "Once()"),
        (At(epochs=[1, 5]) | ~After(minutes=2), "(At(epochs=[1, 5]) | ~After(minutes=2))"),
        (If(len), "If(len)"),
    ],
)
def test_repr_shows_a_schedule_as_it_is_written(schedule, shown):
    assert repr(schedule) == shown
