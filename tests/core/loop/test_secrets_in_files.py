"""The files of a run contain no secrets: a real process with secrets in its command, its settings and its error."""

from __future__ import annotations

import json
import subprocess
import sys

SCRIPT = """
import argparse, dataclasses, sys
from types import SimpleNamespace
import hookpoint

@dataclasses.dataclass
class Hub:
    token: str = "hidden-1"
    retries: int = 3

@dataclasses.dataclass
class Config:
    hub: Hub
    space: SimpleNamespace
    env: list
    url: str
    pem: str
    num_memory_tokens: int = 16
    token_dropout: float = 0.1

config = Config(
    Hub(),
    SimpleNamespace(password="hidden-2", deeper=argparse.Namespace(creds="hidden-3", max_tokens=512)),
    ["WANDB_API_KEY=hidden-4", "LR=0.1"],
    "https://bucket.s3.amazonaws.com/x?X-Amz-Expires=60&X-Amz-Signature=hidden-5",
    "-----BEGIN PRIVATE KEY-----\\nhidden-6\\n-----END PRIVATE KEY-----",
)
with hookpoint.Loop(workdir=sys.argv[1], config=config, extra_callbacks=[]) as run:
    for _ in run.epochs(1):
        for batch in run.batches([1.0]):
            run.put_event("login", url="https://host/c?sv=1&sig=hidden-7", text="password=hidden-8")
            raise RuntimeError("cannot log in: password=hidden-9 token: hidden-10 after 3 tries")
"""
ARGUMENTS = [
    *("--wandb_key", "hidden-11", "--pw", "hidden-12", "--creds", "hidden-13", "--pat", "hidden-14", "-phidden-15"),
    *("--cookie", "id=hidden-16", '{"lr": 1, "api_key": "hidden-17"}', "--url=https://host/c?sig=hidden-18"),
    *("--p", "0.1", "--patience", "3", "--path", "here", "--pwm", "5", "--pad_token_id", "0"),
]


def test_the_files_of_a_run_contain_no_secrets(tmp_path):
    script, workdir = tmp_path / "train.py", tmp_path / "run"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, script, workdir, *ARGUMENTS], capture_output=True, text=True, timeout=250, check=False
    )
    assert "RuntimeError: cannot log in" in done.stderr
    written = {path: path.read_text() for path in (workdir / "run.json", workdir / "events.jsonl")}
    assert {path.name: text for path, text in written.items() if "hidden" in text} == {}
    run = json.loads(written[workdir / "run.json"])
    assert run["command"].endswith("--p 0.1 --patience 3 --path here --pwm 5 --pad_token_id 0")
    assert run["reason"] == "RuntimeError: cannot log in: password=*** token: *** after 3 tries"
    config = run["config"]
    assert (config["num_memory_tokens"], config["token_dropout"], config["env"][1]) == (16, 0.1, "LR=0.1")
    assert config["space"] == {"password": "***", "deeper": {"creds": "***", "max_tokens": 512}}
    events = [json.loads(line) for line in written[workdir / "events.jsonl"].splitlines()]
    assert [event["text"] for event in events if event["event"] == "exception"] == [
        "cannot log in: password=*** token: *** after 3 tries"
    ]
