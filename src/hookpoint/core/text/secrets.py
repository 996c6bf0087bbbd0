"""Secrets: mask passwords and tokens in settings, commands and URLs before they are written to files and messages."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import SimpleNamespace
from typing import Any, overload

from hookpoint.core.text._lazy_pattern import lazy_pattern
from hookpoint.core.text._secret_names import is_count, is_secret, is_secret_parameter

MASK = "***"
DEEPEST = 32  # values at a greater depth are replaced by MASK, because a dict may contain itself

_NAME = lazy_pattern(r"-{0,2}([A-Za-z][\w.-]*)")
_ASSIGNMENT = lazy_pattern(r"(-{0,2}\+{0,2}[A-Za-z_][\w.-]*)([=:])(.*)", re.DOTALL)
# A password, as in mysql's `-psecret`. Numbers, such as -p8080 and -p0.1, do not match.
_PASSWORD = lazy_pattern(r"-p(?P<value>.*[^\d.,eE+-].*)", re.DOTALL)
_OPTIONS = lazy_pattern(  # options that begin with -p, but contain no password
    r"-p(?:ar(?:allel|ams?)|ath|atience|db|ipe|lot|lugins?|olicy|ool|ort|re(?:cision|fix|set|trained)|rint|riority|ro(?:b|cs|cess|file"
    r"|gress|ject|mpt|xy)|ython)s?(?:[=:_-].*)?"
)
_PRIVATE_KEY = lazy_pattern(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----|\Z)", re.DOTALL
)
_USER_INFO = lazy_pattern(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,40}://)(?P<user>[^\s/?#@]*(?:@[^\s/?#@]*)*)@")
_CHAT = lazy_pattern(  # the URL itself is the secret
    r"(?P<start>(?:discord|gchat|ifttt|join|line|mailgun|msteams|pbul|pover|prowl|sendgrid|slack|tgram|twilio|workflows|zulip)s?://"
    r"|https?://(?:hooks\.slack\.com|(?:\w+\.)?discord(?:app)?\.com/api/webhooks|api\.telegram\.org)/)[^\s\"']+"
)
_QUERY = lazy_pattern(r"(?P<start>[?&;])(?P<name>[\w.\[\]%-]+)=(?P<value>[^&;#\s\"']+)")
_HEADER = lazy_pattern(
    r"(?P<name>[\w-]{0,40}authorization[\"']?\s*[:=]\s*[\"']?)(?P<kind>\w+\s+)?(?P<value>[^\s\"']+)", re.IGNORECASE
)
_COOKIES = lazy_pattern(r"(?P<name>\b(?:set-)?cookie:\s*)[^\r\n\"']+", re.IGNORECASE)
_BEARER = lazy_pattern(r"\b(?P<kind>bearer|basic|token)\s+(?P<value>[A-Za-z0-9._~+/=-]{8,})", re.IGNORECASE)
_ASSIGNED = lazy_pattern(r"(?<![\w.-])(?P<name>-{0,2}[A-Za-z_][\w.-]{0,80})\\?[\"']?[ \t]*[=:][ \t]*")  # token=x
_VALUE = lazy_pattern(r"\\?\"[^\"\\]*\\?\"|\\?'[^'\\]*\\?'|\([^()]*\)|\[[^\[\]]*\]|\{[^{}]*\}|[^\s,;&#\"'(){}\[\]]+")
_LOOKS_SECRET = lazy_pattern(
    r"(?<![A-Za-z0-9])(?:sk-[\w-]{16,}|hf_[A-Za-z0-9]{16,}|gh[opsur]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|xox[abprs]-[\w-]{10,}|AKIA[A-Z0-9]{16}|AIza[\w-]{30,}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*)"
)
_NOT_IN_TEXT = {"key", "--key"}  # as in "unexpected key: layer.weight"
_NOTHING = {"none", "null", "true", "false", "''", '""', MASK, f"'{MASK}'", f'"{MASK}"'}


@overload
def masked(value: Mapping[Any, Any]) -> dict[Any, Any]: ...
@overload
def masked(value: str) -> str: ...  # type: ignore[overload-overlap]  # a str is also a sequence
@overload
def masked(value: Sequence[str]) -> list[str]: ...
def masked(value: Any) -> Any:
    """Return settings, a command's arguments or a text, with secrets replaced by `***`. The input is not changed.

    Settings are masked by name, at any depth: token, key, password, secret, cookie and similar names. Dataclasses and
    namespaces in settings become dicts. Empty values, None, True, False and counts are kept: `max_tokens=512` is not a secret.
    In arguments, the values of `--token x`, `--token=x`, `TOKEN=x` and `-px` are masked, as well as secrets in JSON.

    In any text, the following are masked: the values in `password=x` and `token: x`, user names and passwords in URLs
    (`postgres://***@host/db`), URL parameters with secret names, signatures in URLs, chat webhook URLs, authorization headers,
    private keys, and tokens with the prefixes of well-known services. Masking is best-effort: it does not find a secret with a
    harmless name and no known prefix.

    >>> masked({"lr": 0.1, "api_key": "abc", "db": {"password": "x", "url": "postgres://me:pw@host/db"}})
    {'lr': 0.1, 'api_key': '***', 'db': {'password': '***', 'url': 'postgres://***@host/db'}}
    >>> masked(["train.py", "--lr", "0.1", "--wandb-token", "abc", "WANDB_API_KEY=abc"])
    ['train.py', '--lr', '0.1', '--wandb-token', '***', 'WANDB_API_KEY=***']
    >>> masked("login failed: user=me password=abc")
    'login failed: user=me password=***'
    """
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return _named(value, secret=False, depth=0)
    return _arguments(value)


def _named(settings: Mapping[Any, Any], *, secret: bool, depth: int) -> dict[Any, Any]:
    return {name: _masked_item(name, value, secret, depth) for name, value in settings.items()}


def _masked_item(name: Any, value: Any, secret: bool, depth: int) -> Any:
    is_number = isinstance(value, int | float) and "token" in str(name).lower()  # token_dim=512
    return _value(value, secret=secret or (is_secret(str(name)) and not is_number), depth=depth + 1)


def _value(value: Any, *, secret: bool = False, depth: int = 0) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if depth > DEEPEST:
        return MASK
    if (named := _fields(value)) is not None:
        return _named(named, secret=secret, depth=depth)
    if isinstance(value, list | tuple | set | frozenset):
        return _sequence(value, secret=secret, depth=depth)
    if secret:
        return value if isinstance(value, str | bytes) and not value else MASK
    if isinstance(value, str):
        return _json(value) if value[:1] in ("{", "[") else _text(value)
    return value if isinstance(value, int | float) else _object(value)


def _fields(value: Any) -> Mapping[Any, Any] | None:
    """Return the settings in a mapping, a dataclass or a namespace. Return None for anything else."""
    if isinstance(value, Mapping):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in fields(value)}
    is_namespace = isinstance(value, SimpleNamespace) or any(
        kind.__module__ == "argparse" and kind.__name__ == "Namespace" for kind in type(value).__mro__
    )
    return dict(vars(value)) if is_namespace else None


def _sequence(value: Any, *, secret: bool, depth: int) -> Any:
    names = getattr(value, "_fields", None)
    if isinstance(value, tuple) and isinstance(names, tuple) and len(names) == len(value):
        return tuple(_masked_item(name, item, secret, depth) for name, item in zip(names, value, strict=True))
    if not secret and isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        items: list[Any] = _arguments(value)
    else:
        items = [_value(item, secret=secret, depth=depth + 1) for item in value]
    if isinstance(value, list | tuple):
        return items if isinstance(value, list) else tuple(items)
    return {str(item) if isinstance(item, dict | list | set) else item for item in items}  # a masked dataclass is a dict


def _object(value: Any) -> Any:
    """Return an object unchanged or, if its text contains a secret, the masked text."""
    try:
        text = str(value)
    except Exception:
        return value
    hidden = _text(text)
    return value if hidden == text else hidden


def _arguments(arguments: Sequence[str]) -> list[str]:
    result: list[str] = []
    option = ""  # the name of a secret option whose value is the next argument
    for argument in map(str, arguments):
        if option and not argument.startswith("--"):
            result.append(argument if is_count(option, argument) else MASK)
            option = ""
            continue
        result.append(_argument(argument))
        name = _NAME.fullmatch(argument)
        option = name[1] if argument.startswith("-") and name is not None and is_secret(name[1]) else ""
    return result


def _argument(argument: str) -> str:
    """Return an argument with its secrets masked."""
    if _PASSWORD.fullmatch(argument) and not _OPTIONS.fullmatch(argument) and not is_secret(argument):
        return f"-p{MASK}"
    assigned = _ASSIGNMENT.fullmatch(argument)
    if assigned is not None and "://" not in assigned[0][: assigned.end(2) + 2]:
        name, between, value = assigned.groups()
        if is_secret(name) and " " not in name and not is_count(name, value):
            if not _HEADER.fullmatch(argument):
                return f"{name}{between}{MASK if value else ''}"
        elif value[:1] in ("{", "["):
            return f"{name}{between}{_json(value)}"
    return _json(argument) if argument[:1] in ("{", "[") else _text(argument)


def _json(text: str) -> str:
    """Return a JSON text with its secrets masked. Return it unchanged if it contains none."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return _text(text)
    hidden = _value(parsed)
    return text if hidden == parsed else json.dumps(hidden)


def _text(text: str) -> str:
    text = _PRIVATE_KEY.sub(MASK, text)
    text = _USER_INFO.sub(rf"\g<scheme>{MASK}@", text)
    text = _CHAT.sub(rf"\g<start>{MASK}", text)
    text = _QUERY.sub(_parameter, text)
    text = _HEADER.sub(lambda match: f"{match['name']}{match['kind'] or ''}{MASK}", text)
    text = _COOKIES.sub(rf"\g<name>{MASK}", text)
    text = _BEARER.sub(lambda match: f"{match['kind']} {MASK}", text)
    text = _assignments(text)
    return _LOOKS_SECRET.sub(MASK, text)


def _parameter(match: re.Match[str]) -> str:
    return f"{match['start']}{match['name']}={MASK}" if is_secret_parameter(match["name"]) else match[0]


def _assignments(text: str) -> str:
    """Mask the values that a text assigns to secret names."""
    pieces, done, position = [], 0, 0
    while (match := _ASSIGNED.search(text, position)) is not None:
        position = match.end()
        value = _VALUE.match(text, position) if _is_secret_in_text(match["name"]) else None
        if value is None or value[0].lower() in _NOTHING or is_count(match["name"], value[0]):
            continue
        quote = re.match(r"\\?[\"']", value[0])
        pieces += [text[done:position], MASK if quote is None else f"{quote[0]}{MASK}{quote[0]}"]
        done = position = value.end()
    return "".join([*pieces, text[done:]])


def _is_secret_in_text(name: str) -> bool:
    is_of_header = name.lower().endswith("authorization")  # _HEADER masks these values, but keeps the scheme, such as Bearer
    return is_secret(name) and name.lower() not in _NOT_IN_TEXT and not is_of_header
