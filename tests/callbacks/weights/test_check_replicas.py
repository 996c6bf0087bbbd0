from __future__ import annotations

import pytest
import torch
from torch import nn

from hookpoint import Every, Runner
from hookpoint.callbacks import CheckReplicas
from hookpoint.core.errors import BadArgument


def test_differences_between_ranks_are_named_and_repaired(launch):
    def check():
        import os

        import torch
        from torch import nn

        from hookpoint import Callback, Every, Runner, errors
        from hookpoint import callbacks as cb

        class Break(Callback):
            """Change a weight of one rank, as a bug would."""

            def on_train_iter_end(self, run):
                if run.step == 2 and run.rank == 1:
                    with torch.no_grad():
                        run.model[1].bias[0] += 1e-6

        def train(*callbacks):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            options = {"callbacks": callbacks, "extra_callbacks": [], "monitors": []}
            run = Runner(model, optimizer, nn.MSELoss(), **options).fit(
                (torch.ones(16, 2), torch.ones(16, 1)), epochs=2, batch_size=2
            )
            return run.step, [value.tolist() for value in model.state_dict().values()]

        whole = train(cb.CheckReplicas())
        repaired = train(Break(), cb.CheckReplicas(repair="chief").when(Every(steps=2)))
        try:
            train(Break(), cb.CheckReplicas().when(Every(steps=2)))
        except errors.ReplicasDiffer as error:
            return {"whole": whole, "repaired": repaired, "error": str(error), "rank": os.environ["RANK"]}

    outcome = launch(check)
    first, second = outcome.results
    for result in (first, second):
        assert result["error"].startswith("CheckReplicas: weights differ from the chief's at step 2: 1.bias (rank 1).\n")
    assert first["whole"] == second["whole"]
    assert first["repaired"] == second["repaired"] == first["whole"]
    assert "Copying the chief's weights to all ranks" in outcome.printed


def test_a_single_process_has_nothing_to_compare():
    model = nn.Linear(1, 1)
    runner = Runner(model, torch.optim.SGD(model.parameters()), nn.MSELoss(), callbacks=[CheckReplicas().when(Every(steps=1))])
    assert runner.fit((torch.ones(4, 1), torch.ones(4, 1)), epochs=1, batch_size=2).step == 2


def test_an_unknown_repair_raises():
    with pytest.raises(BadArgument, match="CheckReplicas: repair must be None or 'chief', got 'mean'"):
        CheckReplicas(repair="mean")
