"""A run that is interrupted with averaged weights in the model resumes with the weights that it trained."""

from __future__ import annotations

import signal

import pytest
from averages import KINDS, SITES
from scale import FULL, chosen
from subject import Variant

VARIANTS = [
    Variant(),
    Variant(kind="loop"),
    Variant(in_background=True),
    Variant(val_steps=3),
    Variant(kind="loop", val_steps=3),
]
CASES = [(variant, site) for variant in VARIANTS for site in SITES]


@pytest.fixture(scope="session")
def undisturbed(children, tmp_path_factory):
    """Return the results of an uninterrupted run."""
    known = {}

    def of(kind, variant):
        if (kind, variant) not in known:
            folder = tmp_path_factory.mktemp("undisturbed")
            given = {"workdir": str(folder / "run"), "trace": str(folder / "trace"), "variant": vars_of(variant)}
            child = children.start("averages.train", kind=kind, **given)
            assert child.wait() == 0, child.log
            known[kind, variant] = child.returned
        return known[kind, variant]

    return of


def vars_of(variant):
    return {name: getattr(variant, name) for name in variant.__dataclass_fields__}


@pytest.mark.thin(2)
@pytest.mark.parametrize("epoch", [1, 2, 4] if FULL else [2])
@pytest.mark.parametrize(("variant", "site"), chosen(CASES, 2), ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_with_averages_resumes_exactly(kind, variant, site, epoch, trial, undisturbed, tally):
    run = trial(variant)
    assert run.start("averages.train", kind=kind, site=site, epoch=epoch).wait() == -signal.SIGKILL
    last = run.start("averages.train", kind=kind)
    assert last.wait() == 0, last.log
    assert last.returned == undisturbed(kind, variant)
    tally(f"averages ({kind}) killed", runs=1, bitwise_equal=1)


@pytest.mark.parametrize("site", ["on_val_epoch_begin", "on_val_iter_end", "on_epoch_end"] if FULL else ["on_val_iter_end"])
@pytest.mark.parametrize("variant", VARIANTS if FULL else VARIANTS[:1], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_gets_sigterm_with_averages_in_the_model_resumes_exactly(kind, variant, site, trial, undisturbed, tally):
    run = trial(variant)
    child = run.start("averages.train", kind=kind, site=site, epoch=2, sends=signal.SIGTERM)
    assert child.wait() == 143, child.log
    last = run.start("averages.train", kind=kind)
    assert last.wait() == 0, last.log
    assert last.returned == undisturbed(kind, variant)
    tally(f"averages ({kind}) told to end", runs=1, bitwise_equal=1)
