from __future__ import annotations

import json
import random
import subprocess
import sys

import numpy as np
import pytest

from hookpoint.core.checkpoint.randomness import PlainRandomness, put_state, state_of


@pytest.fixture(autouse=True)
def generators():
    """Leave every generator as it was found."""
    found = random.getstate(), np.random.get_state()
    yield
    random.setstate(found[0])
    np.random.set_state(found[1])


def draw():
    return random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn()


def test_python_and_numpy_generators_resume():
    randomness = PlainRandomness()
    draw()  # a normal distribution draws two numbers at once and keeps the second for the next call
    state = json.loads(json.dumps(randomness.state_dict()))
    expected = [draw(), draw()]
    random.seed(1)
    np.random.seed(1)
    randomness.load_state_dict(state)
    assert [draw(), draw()] == expected


@pytest.mark.parametrize(
    "make",
    [
        lambda: random.Random(3),
        lambda: np.random.RandomState(3),
        lambda: np.random.default_rng(3),
        lambda: np.random.Generator(np.random.Philox(3)),
        lambda: np.random.Generator(np.random.SFC64(3)),
        lambda: np.random.Generator(np.random.MT19937(3)),
    ],
    ids=["Random", "RandomState", "PCG64", "Philox", "SFC64", "MT19937"],
)
def test_every_kind_of_generator_resumes(make):
    generator = make()
    generator.random()
    state = json.loads(json.dumps(state_of(generator)))
    expected = [generator.random() for _ in range(700)]
    other = make()
    put_state(other, state)
    assert [other.random() for _ in range(700)] == expected


def test_numpy_is_neither_imported_nor_required():
    program = (
        "import sys, random\n"
        "from hookpoint.core.checkpoint.randomness import PlainRandomness\n"
        "state = PlainRandomness().state_dict()\n"
        "first = random.random()\n"
        "PlainRandomness().load_state_dict(state)\n"
        "print(list(state), random.random() == first, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=250)
    assert done.stdout == "['python'] True False\n"
