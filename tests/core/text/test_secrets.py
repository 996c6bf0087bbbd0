from __future__ import annotations

import argparse
import copy
import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from hookpoint.core.text.secrets import is_secret, masked

# fmt: off
SECRET = [
    "api_key", "apiKey", "APIKEY", "api-key", "token", "TOKEN", "hf_token", "HF_TOKEN", "accessToken", "session_token",
    "key", "secret", "client_secret", "SECRET_KEY", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "dbpassword", "password",
    "db.password", "passwd", "pwd", "auth", "Authorization", "credentials", "private_key", "ssh_key", "WANDB_API_KEY",
    "jwt", "passphrase", "wandb_key", "pw", "db_pw", "creds", "aws_creds", "pat", "github_pat", "cookie", "session_cookie",
    "AccountKey", "smtp_pass",
]
HARMLESS = [
    "lr", "max_tokens", "num_tokens", "tokenizer", "keys", "sort_key", "monkey", "keyboard", "primary_key",
    "foreign_key", "key_size", "eos_token_id", "token_type_ids", "author", "authority", "n_heads", "secretary",
    "epochs", "workdir", "num_memory_tokens", "max_tokens", "token_dropout", "pad_token_id", "p", "patience", "path", "pwm",
    "pw_conv", "file_pat", "patch", "forward_pass", "credit", "signature", "cookies_per_day", "token_embedding",
]
# fmt: on


@pytest.mark.parametrize("name", SECRET)
def test_names_of_secrets_are_recognized(name):
    assert is_secret(name)
    assert masked({name: "abc"}) == {name: "***"}


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_names_are_not_masked(name):
    assert not is_secret(name)
    assert masked({name: "abc"}) == {name: "abc"}


def test_settings_are_masked_at_any_depth_without_changing_the_original():
    given = {
        "lr": 0.1,
        "model": {"layers": (1, 2), "hub": {"token": "abc", "retries": 3}},
        "auth": {"user": "me", "pins": [1, 2]},
        "hosts": ["https://me:pw@a/x", "https://b"],
        "password": 12345,
        "secret": b"raw",
        "tokens": 512,
        "api_key": None,
        "token": "",
        "use_auth": True,
        7: "seven",
    }
    before = copy.deepcopy(given)
    assert masked(given) == {
        "lr": 0.1,
        "model": {"layers": (1, 2), "hub": {"token": "***", "retries": 3}},
        "auth": {"user": "***", "pins": ["***", "***"]},
        "hosts": ["https://***@a/x", "https://b"],
        "password": "***",
        "secret": "***",
        "tokens": 512,
        "api_key": None,
        "token": "",
        "use_auth": True,
        7: "seven",
    }
    assert given == before


def test_an_object_under_a_secret_name_is_masked():
    class Secret:
        def __repr__(self):
            return "abc"

    assert masked({"token": Secret()}) == {"token": "***"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["train.py", "--lr", "0.1"], ["train.py", "--lr", "0.1"]),
        (["--token", "abc", "--lr", "1"], ["--token", "***", "--lr", "1"]),
        (["--token", "-abc"], ["--token", "***"]),
        (["--token", "--lr", "3"], ["--token", "--lr", "3"]),
        (["--token"], ["--token"]),
        (["--api-key=abc"], ["--api-key=***"]),
        (["--token="], ["--token="]),
        (["--token=a=b"], ["--token=***"]),
        (["WANDB_API_KEY=abc"], ["WANDB_API_KEY=***"]),
        (["hub.token=abc"], ["hub.token=***"]),
        (["+hub.token=abc"], ["+hub.token=***"]),
        (["--max-tokens", "512"], ["--max-tokens", "512"]),
        (["--data=s3://bucket/x"], ["--data=s3://bucket/x"]),
        (["--url", "https://me:pw@host/x?token=abc&x=1#f"], ["--url", "https://***@host/x?token=***&x=1#f"]),
        (["--url=postgresql+psycopg2://me:pw@host/db"], ["--url=postgresql+psycopg2://***@host/db"]),
        (["token", "abc"], ["token", "abc"]),
        (["git@example.org:me/x", "me@host", r"C:\keys"], ["git@example.org:me/x", "me@host", r"C:\keys"]),
        (["--wandb_key", "X"], ["--wandb_key", "***"]),
        (["--pw", "X", "--creds", "Y", "--pat=Z"], ["--pw", "***", "--creds", "***", "--pat=***"]),
        (["--cookie", "a=b; c=d", "--lr", "1"], ["--cookie", "***", "--lr", "1"]),
        (["mysql", "-phunter2", "-pX", "-pässwort"], ["mysql", "-p***", "-p***", "-p***"]),
        (["-p", "0.1", "-p8080", "-p0.1", "-p1e-3"], ["-p", "0.1", "-p8080", "-p0.1", "-p1e-3"]),
        (["-path", "x", "-patience=3", "-port", "80"], ["-path", "x", "-patience=3", "-port", "80"]),
        (
            ["--p", "0.1", "--patience", "3", "--path", "x", "--pwm", "5"],
            ["--p", "0.1", "--patience", "3", "--path", "x", "--pwm", "5"],
        ),
        (
            ["--token_dropout", "0.1", "--num_memory_tokens=16", "--tokens", "512"],
            ["--token_dropout", "0.1", "--num_memory_tokens=16", "--tokens", "512"],
        ),
        (['{"lr": 1, "api_key": "X"}'], ['{"lr": 1, "api_key": "***"}']),
        (['--config={"hub": [{"token": "X"}]}'], ['--config={"hub": [{"token": "***"}]}']),
        (['{"lr":1}', "[1,2]", "{x"], ['{"lr":1}', "[1,2]", "{x"]),
        (["{'password': 'X', 'lr': 1}"], ["{'password': '***', 'lr': 1}"]),
        (["env", "--env=WANDB_API_KEY=X"], ["env", "--env=WANDB_API_KEY=***"]),
        ((), []),
    ],
)
def test_secrets_in_arguments_are_masked(given, expected):
    assert masked(given) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("could not reach https://me:p@ss@host:80/x now", "could not reach https://***@host:80/x now"),
        ("https://token@host", "https://***@host"),
        ("https://host/?api_key=abc&page=2", "https://host/?api_key=***&page=2"),
        ("ntfys://topic", "ntfys://topic"),
        ("discord://123/abcdef", "discord://***"),
        ("https://hooks.slack.com/services/T0/B0/abc", "https://hooks.slack.com/***"),
        ("https://discord.com/api/webhooks/1/abc", "https://discord.com/api/webhooks/***"),
        ("https://api.telegram.org/bot1:abc/send", "https://api.telegram.org/***"),
        ("Authorization: Bearer abcdefgh", "Authorization: Bearer ***"),
        ('{"Authorization": "abc"}', '{"Authorization": "***"}'),
        ("with bearer abcdefghij", "with bearer ***"),
        ("hf_" + "a" * 30, "***"),
        ("sk-" + "a" * 30, "***"),
        ("login failed: user=me password=X token: Y", "login failed: user=me password=*** token: ***"),
        ("Config(token='X', lr=0.1, pw=\"Y\")", "Config(token='***', lr=0.1, pw=\"***\")"),
        ('{"a": {"secret": "X Y"}, "b": 1} is bad', '{"a": {"secret": "***"}, "b": 1} is bad'),
        ("AccountName=me;AccountKey=X==;Suffix=y", "AccountName=me;AccountKey=***;Suffix=y"),
        ("https://b.s3.aws.com/x?X-Amz-Date=1&X-Amz-Signature=X", "https://b.s3.aws.com/x?X-Amz-Date=1&X-Amz-Signature=***"),
        ("https://a.blob.core.windows.net/c?sv=1&sig=X%3D&se=2", "https://a.blob.core.windows.net/c?sv=1&sig=***&se=2"),
        ("Cookie: a=X; b=Y\nHost: c", "Cookie: ***\nHost: c"),
        ("is -----BEGIN RSA PRIVATE KEY-----\nX\nY\n-----END RSA PRIVATE KEY----- it", "is *** it"),
        ("-----BEGIN PRIVATE KEY-----\nX\nY", "***"),
        ("-----BEGIN CERTIFICATE-----\nX", "-----BEGIN CERTIFICATE-----\nX"),
        ("unexpected key: layer.weight; tokens: 512", "unexpected key: layer.weight; tokens: 512"),
        ("Missing key(s) in state_dict: 'a.b'", "Missing key(s) in state_dict: 'a.b'"),
        ("password: None, token=''", "password: None, token=''"),
        ("num_memory_tokens=16 max_tokens: 512 pad_token_id=0", "num_memory_tokens=16 max_tokens: 512 pad_token_id=0"),
        ("the tokenizer has 5 tokens", "the tokenizer has 5 tokens"),
        ("loss is 0.5 at step 3", "loss is 0.5 at step 3"),
        ("", ""),
    ],
)
def test_secrets_in_texts_are_masked(given, expected):
    assert masked(given) == expected
    assert masked({"note": given}) == {"note": expected}


def test_masking_twice_gives_the_same_result():
    once = masked(["--token", "abc", "https://me:pw@host/?key=x", "Authorization: Basic abc"])
    assert masked(once) == once


def test_a_number_under_a_token_name_is_not_masked():
    given = {"token_dim": 512, "token_dropout": 0.1, "token": "abc"}
    assert masked(given) == {"token_dim": 512, "token_dropout": 0.1, "token": "***"}


@dataclasses.dataclass
class Hub:
    token: str = "X"
    retries: int = 3


class Login(NamedTuple):
    user: str
    password: str


class Odd:
    def __repr__(self):
        return "Odd(password=X)"


def test_settings_in_objects_are_masked():
    given = {
        "hub": Hub(),
        "space": SimpleNamespace(lr=0.1, hub=Hub(), api_key="X"),
        "parsed": argparse.Namespace(pw="X", deeper=[SimpleNamespace(cookie="X")]),
        "login": Login("me", "X"),
        "env": ["WANDB_API_KEY=X", "LR=1"],
        "args": ("--token", "X", "--lr", "1"),
        "odd": Odd(),
        "path": Path("a/b"),
        "json": '{"token": "X"}',
        "kind": Hub,
    }
    hub = {"token": "***", "retries": 3}
    assert masked(given) == {
        "hub": hub,
        "space": {"lr": 0.1, "hub": hub, "api_key": "***"},
        "parsed": {"pw": "***", "deeper": [{"cookie": "***"}]},
        "login": ("me", "***"),
        "env": ["WANDB_API_KEY=***", "LR=1"],
        "args": ("--token", "***", "--lr", "1"),
        "odd": "Odd(password=***)",
        "path": Path("a/b"),
        "json": '{"token": "***"}',
        "kind": Hub,
    }


def test_settings_that_contain_themselves_can_be_masked():
    space = SimpleNamespace(lr=0.1)
    space.own = space
    assert masked({"space": space})["space"]["own"]["own"]["lr"] == 0.1


@pytest.mark.parametrize(
    "words", ["a" * 100_000, "- " * 50_000, "token " * 20_000, "-----BEGIN PRIVATE KEY-----" * 3_000, "a=" * 50_000]
)
def test_masking_a_long_text_does_not_hang(words):
    assert isinstance(masked(words), str)
