"""Secrets: what must not be seen where settings, commands and addresses are written down."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, overload

MASK = "***"

WORDS = {"auth", "authorization", "bearer", "credential", "credentials", "passphrase", "passwd", "password", "pwd", "secret"}
KINDS = {"access", "account", "api", "auth", "encryption", "private", "secret", "signing", "ssh"}  # of keys; sort_key is none
OF_TEXT = {"bos", "cls", "eos", "mask", "pad", "sep", "special", "unk"}  # tokens that words are made of
COUNTED = {"count", "id", "ids", "length", "limit", "max", "min", "num", "number", "per", "size"}  # max_tokens is a number

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_RUN_TOGETHER = re.compile(r"\w*(?:apikey|password|passwd|secret)s?|(?:access|auth|encryption|private|signing|ssh)keys?")
_NAME = re.compile(r"-{0,2}([A-Za-z][\w.-]*)")
_ASSIGNMENT = re.compile(r"(-{0,2}\+{0,2}[A-Za-z_][\w.-]*)([=:])(.*)", re.DOTALL)
_USER_INFO = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?P<user>[^\s/?#@]*(?:@[^\s/?#@]*)*)@")
_CHAT = re.compile(  # whose addresses are the secret
    r"(?P<start>(?:discord|gchat|ifttt|join|line|mailgun|msteams|pbul|pover|prowl|sendgrid|slack|tgram|twilio|workflows|zulip)s?://"
    r"|https?://(?:hooks\.slack\.com|(?:\w+\.)?discord(?:app)?\.com/api/webhooks|api\.telegram\.org)/)[^\s\"']+"
)
_QUERY = re.compile(r"(?P<start>[?&;])(?P<name>[\w.\[\]%-]+)=(?P<value>[^&;#\s\"']+)")
_HEADER = re.compile(r"(?P<name>[\w-]*authorization[\"']?\s*[:=]\s*[\"']?)(?P<kind>\w+\s+)?(?P<value>[^\s\"']+)", re.IGNORECASE)
_BEARER = re.compile(r"\b(?P<kind>bearer|basic|token)\s+(?P<value>[A-Za-z0-9._~+/=-]{8,})", re.IGNORECASE)
_LOOKS_SECRET = re.compile(
    r"(?<![A-Za-z0-9])(?:sk-[\w-]{16,}|hf_[A-Za-z0-9]{16,}|gh[opsur]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|xox[abprs]-[\w-]{10,}|AKIA[A-Z0-9]{16}|AIza[\w-]{30,}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*)"
)


@overload
def masked(given: Mapping[Any, Any]) -> dict[Any, Any]: ...
@overload
def masked(given: str) -> str: ...  # type: ignore[overload-overlap]  # a str is a sequence too
@overload
def masked(given: Sequence[str]) -> list[str]: ...
def masked(given: Any) -> Any:
    """Return settings, a command's arguments or a text with `***` in the place of secrets; what is given is not changed.

    Settings are masked by their names, at any depth: token, key, password, secret and the like. What is empty, None, True or
    False stays, and so do counts: `max_tokens=512` is no secret. Of arguments, `--token x`, `--token=x` and `TOKEN=x` lose
    their value. In every text, so do addresses with a name or password (`postgres://***@host/db`), their parameters with such
    names, addresses of chats, headers of authorization, and what begins like the tokens of well-known services. A secret
    under a harmless name that looks like nothing is not seen: this is a net, and no wall.

    >>> masked({"lr": 0.1, "api_key": "abc", "db": {"password": "x", "url": "postgres://me:pw@host/db"}})
    {'lr': 0.1, 'api_key': '***', 'db': {'password': '***', 'url': 'postgres://***@host/db'}}
    >>> masked(["train.py", "--lr", "0.1", "--wandb-token", "abc", "WANDB_API_KEY=abc"])
    ['train.py', '--lr', '0.1', '--wandb-token', '***', 'WANDB_API_KEY=***']
    """
    if isinstance(given, str):
        return _text(given)
    if isinstance(given, Mapping):
        return _mapping(given)
    return _arguments(given)


def is_secret(name: str) -> bool:
    """Say whether a value under this name is to be kept to oneself.

    >>> [name for name in ("api_key", "hfToken", "sort_key", "max_tokens", "PGPASSWORD") if is_secret(name)]
    ['api_key', 'hfToken', 'PGPASSWORD']
    """
    words = [word.lower() for word in _WORD.findall(name)]
    if any(word in WORDS or _RUN_TOGETHER.fullmatch(word) for word in words):
        return not set(words) & COUNTED
    if {"token", "tokens", "jwt"} & set(words):
        return not set(words) & (COUNTED | OF_TEXT)
    return words == ["key"] or (bool({"key", "keys"} & set(words)) and bool(KINDS & set(words)))


def _mapping(given: Mapping[Any, Any]) -> dict[Any, Any]:
    return {name: _value(value, secret=_is_secret_here(str(name), value)) for name, value in given.items()}


def _is_secret_here(name: str, value: Any) -> bool:
    is_count = isinstance(value, int | float) and "token" in name.lower()  # token_dim=512
    return is_secret(name) and not is_count


def _value(value: Any, *, secret: bool = False) -> Any:
    if isinstance(value, Mapping):
        return {name: _value(one, secret=secret or _is_secret_here(str(name), one)) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        several = [_value(one, secret=secret) for one in value]
        return several if isinstance(value, list) else tuple(several) if isinstance(value, tuple) else set(several)
    if value is None or isinstance(value, bool):
        return value
    if secret:
        return value if isinstance(value, str | bytes) and not value else MASK
    return _text(value) if isinstance(value, str) else value


def _arguments(given: Sequence[str]) -> list[str]:
    kept: list[str] = []
    is_value = False  # of the option before it
    for argument in map(str, given):
        if is_value and not argument.startswith("--"):
            kept.append(MASK)
            is_value = False
            continue
        assigned = _ASSIGNMENT.fullmatch(argument)
        if assigned is not None and is_secret(assigned[1]) and "://" not in assigned[0][: assigned.end(2) + 2]:
            kept.append(f"{assigned[1]}{assigned[2]}{MASK if assigned[3] else ''}")
            is_value = False
            continue
        option = _NAME.fullmatch(argument)
        is_value = argument.startswith("-") and option is not None and is_secret(option[1])
        kept.append(_text(argument))
    return kept


def _text(words: str) -> str:
    words = _USER_INFO.sub(rf"\g<scheme>{MASK}@", words)
    words = _CHAT.sub(rf"\g<start>{MASK}", words)
    words = _QUERY.sub(_parameter, words)
    words = _HEADER.sub(lambda found: f"{found['name']}{found['kind'] or ''}{MASK}", words)
    words = _BEARER.sub(lambda found: f"{found['kind']} {MASK}", words)
    return _LOOKS_SECRET.sub(MASK, words)


def _parameter(found: re.Match[str]) -> str:
    return f"{found['start']}{found['name']}={MASK}" if is_secret(found["name"]) else found[0]
