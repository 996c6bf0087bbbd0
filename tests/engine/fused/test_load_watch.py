from __future__ import annotations

import copy
import io

import torch

from hookpoint.engine.fused._load_watch import LoadWatch


def test_load_state_dict_sets_the_flag_while_watched():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = LoadWatch()
    watch.begin(model, optimizer)
    for part in (model, optimizer):
        assert not watch.has_loaded
        part.load_state_dict(part.state_dict())
        assert watch.has_loaded
        watch.has_loaded = False
    watch.end()
    model.load_state_dict(model.state_dict())
    assert not watch.has_loaded


def test_a_watched_model_can_be_copied_and_saved():
    model = torch.nn.Linear(2, 1)
    watch = LoadWatch()
    watch.begin(model)
    other = copy.deepcopy(model)
    other.load_state_dict(model.state_dict())
    assert not watch.has_loaded
    torch.save(model, io.BytesIO())
    watch.end()
