from __future__ import annotations

import copy

import pytest

from hookpoint.core.text.secrets import is_secret, masked

# fmt: off
SECRET = [
    "api_key", "apiKey", "APIKEY", "api-key", "token", "TOKEN", "hf_token", "HF_TOKEN", "accessToken", "session_token",
    "key", "secret", "client_secret", "SECRET_KEY", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "dbpassword", "password",
    "db.password", "passwd", "pwd", "auth", "Authorization", "credentials", "private_key", "ssh_key", "WANDB_API_KEY",
    "jwt", "passphrase",
]
HARMLESS = [
    "lr", "max_tokens", "num_tokens", "tokenizer", "keys", "sort_key", "monkey", "keyboard", "primary_key",
    "foreign_key", "key_size", "eos_token_id", "token_type_ids", "author", "authority", "n_heads", "secretary",
    "epochs", "workdir",
]
# fmt: on


@pytest.mark.parametrize("name", SECRET)
def test_names_of_secrets(name):
    assert is_secret(name)
    assert masked({name: "abc"}) == {name: "***"}


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_names(name):
    assert not is_secret(name)
    assert masked({name: "abc"}) == {name: "abc"}


def test_settings_are_masked_at_any_depth_and_not_changed():
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


def test_an_object_under_such_a_name_is_not_shown():
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
        ((), []),
    ],
)
def test_arguments(given, expected):
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
        ("the tokenizer has 5 tokens", "the tokenizer has 5 tokens"),
        ("loss is 0.5 at step 3", "loss is 0.5 at step 3"),
        ("", ""),
    ],
)
def test_texts(given, expected):
    assert masked(given) == expected
    assert masked({"note": given}) == {"note": expected}


def test_masking_twice_changes_nothing_more():
    once = masked(["--token", "abc", "https://me:pw@host/?key=x", "Authorization: Basic abc"])
    assert masked(once) == once


def test_a_number_under_the_name_of_a_token_is_a_size():
    given = {"token_dim": 512, "token_dropout": 0.1, "token": "abc"}
    assert masked(given) == {"token_dim": 512, "token_dropout": 0.1, "token": "***"}
