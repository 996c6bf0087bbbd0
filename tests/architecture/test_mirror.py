"""Tests mirror the source tree: src/hookpoint/core/log/x.py is tested in tests/core/log/test_x.py."""

from __future__ import annotations

from pathlib import Path

import hookpoint

SOURCE = Path(hookpoint.__file__).parent
TESTS = Path(__file__).parents[1]
# The other files of these folders. Each tests a scenario that spans modules.
SCENARIOS = {
    "adapters/foreign_callbacks/test_ignite.py": "ignite's own handlers in our runs",
    "adapters/foreign_callbacks/test_keras.py": "Keras's own callbacks in our runs",
    "adapters/foreign_callbacks/test_keras_interface.py": "what a Keras callback sees, without Keras",
    "adapters/foreign_callbacks/test_lightning.py": "Lightning's own callbacks in our runs",
    "adapters/foreign_callbacks/test_several_libraries.py": "callbacks of several libraries in one list",
    "adapters/foreign_callbacks/test_transformers.py": "transformers' own callbacks in our runs",
    "adapters/test_accelerate.py": "loaders that Accelerate has prepared",
    "adapters/test_conformance.py": "one script under every trainer",
    "adapters/test_environment.py": "environments of make test-adapters",
    "adapters/test_kill.py": "trainers that are killed and resumed",
    "adapters/test_values.py": "values of callbacks under another trainer",
    "board/test_costs.py": "cost of open pages to a training",
    "board/test_page_build.py": "the built page and its sources",
    "callbacks/notify/test_send_stat_by_apprise.py": "SendStat with the real Apprise and real servers",
    "callbacks/test_best_checkpoint.py": "savers and stoppers that share a best checkpoint",
    "callbacks/test_names.py": "public names of callbacks and monitors",
    "callbacks/test_runs_without_steps.py": "runs whose step count never changes",
    "cli/test_ctl_live.py": "ctl and a training that is running",
    "cli/test_fixture_runs.py": "commands on run folders of this and earlier releases",
    "cli/test_hostile_files.py": "all commands on files from other sources",
    "cli/test_long_files.py": "all commands on files of a long run",
    "cli/test_page.py": "commands and their page in the docs",
    "core/hooks/test_compile_cost.py": "work to compile a list of callbacks",
    "core/loop/test_secrets_in_files.py": "secrets and all files of a run",
    "core/loop/test_set_step.py": "runs that begin at another step",
    "core/test_loop_properties.py": "generated loops and the table of points",
    "engine/data/test_dataset_generators.py": "datasets that draw random numbers",
    "engine/data/test_wrapped_loader.py": "loaders that wrap a DataLoader",
    "engine/step/test_function_main.py": "a function as the main callback",
    "engine/step/test_training_step.py": "the specialized step and the plain one",
    "engine/test_changed_data.py": "resuming with other data and settings",
    "engine/test_compiled_checkpoints.py": "checkpoints of compiled models",
    "engine/test_earlier_runs.py": "runs of an earlier release",
    "engine/test_finite_state.py": "checkpoints with NaN or infinity",
    "engine/test_hooked_resume.py": "resuming data that depends on callbacks",
    "engine/test_nonfinite_loss.py": "losses of NaN or infinity",
    "engine/test_resume.py": "resuming a Runner",
    "monitors/test_after_a_resume.py": "records of all monitors after a resume",
    "parallel/checkpoint/test_encrypted_shards.py": "encrypted checkpoints of several ranks",
    "parallel/checkpoint/test_sharded_checkpoints.py": "shards that each rank writes and reads",
    "parallel/checkpoint/test_team_checkpoints.py": "teams that resume, bit for bit",
    "parallel/data/test_data_order.py": "order of samples on one rank and on several",
    "parallel/strategy/test_changed_strategy.py": "one strategy after another",
    "parallel/strategy/test_strategies.py": "all strategies and a single process",
    "parallel/team/test_out_of_step.py": "ranks that are out of step",
    "parallel/team/test_run_collectives.py": "collectives that callbacks call",
    "parallel/test_agreement.py": "verdicts and settings on several ranks",
    "parallel/test_compiled.py": "compiled models on several ranks",
    "parallel/test_earlier_runs.py": "teams of an earlier release",
    "parallel/test_evaluated_weights.py": "validation without training on several ranks",
    "parallel/test_example.py": "the parallel example",
    "parallel/test_live_control.py": "live control of several ranks",
    "parallel/test_many_controllers.py": "several controllers and several ranks",
    "parallel/test_metrics.py": "metrics on several ranks",
    "parallel/test_missing_metrics.py": "missing metrics on several ranks",
    "parallel/test_misuse.py": "what a Runner refuses on several ranks",
    "parallel/test_nonfinite.py": "NaN and infinity on several ranks",
    "parallel/test_own_loop.py": "your own loop on several ranks",
    "parallel/test_runner.py": "a Runner on several ranks",
    "parallel/test_runner_agreement.py": "verdicts in a Runner on several ranks",
    "parallel/test_team_faults.py": "kills, signals and failing disks on several ranks",
    "parallel/test_weight_collectors.py": "collectors of weights on several ranks",
    "parallel/test_windows.py": "step schedules on several ranks",
    "presets/test_run_file.py": "run.json, however a run ends",
    "steering/test_all_or_none.py": "commands that fail halfway",
    "steering/test_forget.py": "commands that are not replayed",
    "steering/test_hostile_commands.py": "hostile files in the inbox",
    "steering/test_included_knobs.py": "knobs of all included callbacks",
    "steering/test_replay.py": "commands that a resume replays",
    "storage/test_load_averages.py": "averaged weights of a run",
    "storage/test_without_torch.py": "checkpoints without torch",
}


def test_every_test_file_is_named_after_a_module_or_is_a_known_scenario():
    folders = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    modules = {path.relative_to(SOURCE).with_name(path.name.removeprefix("_")) for path in SOURCE.rglob("*.py")}
    files = {path.relative_to(TESTS) for folder in folders for path in (TESTS / folder).rglob("test_*.py")}
    others = {str(path) for path in files if path.with_name(path.name.removeprefix("test_")) not in modules}
    assert others == set(SCENARIOS)
    assert list(SCENARIOS) == sorted(SCENARIOS)
