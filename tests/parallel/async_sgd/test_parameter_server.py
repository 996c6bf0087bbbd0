"""Errors that a worker gets if the parameter server does not answer."""

from __future__ import annotations

from collections import deque

import pytest

from hookpoint.core.errors import OutOfStep

torch = pytest.importorskip("torch")
server_module = pytest.importorskip("hookpoint.parallel.async_sgd._parameter_server")
Staleness = pytest.importorskip("hookpoint.parallel.async_sgd._staleness").Staleness


@pytest.fixture
def server():
    parameters = [torch.nn.Parameter(torch.ones(2))]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    return server_module.ParameterServer(parameters, optimizer, Staleness(0), deque(), wait_seconds=0.01)


def refused(server, worker):
    with pytest.raises(OutOfStep) as caught:
        server.pull(worker, list)
    return str(caught.value)


def test_a_worker_that_waits_too_long_raises_and_names_the_slow_rank(server):
    server.pull(1, list)
    text = "rank 2 has waited 0 s for the parameter server, which got no gradient from rank 1.\n  see       its output"
    assert refused(server, 2) == text


def test_no_rank_is_named_if_no_other_worker_is_computing(server):
    server.pull(1, list)
    text = "rank 1 has waited 0 s for the parameter server.\n  see       the output of the other ranks"
    assert refused(server, 1) == text


@pytest.mark.parametrize(
    "why",
    [
        str(OutOfStep("rank 1 has waited 5 s for the parameter server.", see="its output")),
        "rank 1 has waited 5 s for the parameter server",
    ],
)
def test_the_reason_of_a_failure_is_quoted_in_one_sentence(server, why):
    server.fail(why)
    assert refused(server, 3) == (
        "rank 3 is waiting for the parameter server, but rank 1 has waited 5 s for the parameter server.\n"
        "  see       its output"
    )
