"""Recognize the names of secrets."""

from __future__ import annotations

from hookpoint.core.text._lazy_pattern import lazy_pattern

WORDS = {"auth", "authorization", "bearer", "credential", "credentials", "passcode", "passphrase", "passwd", "password"}
WORDS |= {"pwd", "secret"}
LAST_WORDS = {"cookie", "cookies", "cred", "creds", "pw"}  # only as the last word: pw_conv is a convolution
# Words that make a "key" or "token" a secret: api_key is a secret, sort_key is not.
_KINDS = (
    "access account anthropic api auth aws azure client comet deploy encryption gcp github gitlab google hf hmac huggingface "
    "license master mlflow neptune openai private secret service signing ssh storage wandb webhook"
)
KINDS = set(_KINDS.split())
OF_PEOPLE = {"admin", "db", "database", "ftp", "login", "mail", "mysql", "postgres", "root", "smtp", "user"}  # user_pass
OF_TEXT = {"bos", "cls", "eos", "mask", "pad", "sep", "special", "unk"}  # vocabulary tokens
COUNTED = {"count", "id", "ids", "length", "limit", "max", "min", "num", "number", "per", "size"}  # max_tokens is a number
SIGNATURES = {"sig", "signature"}  # in presigned URLs

_WORD = lazy_pattern(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_RUN_TOGETHER = lazy_pattern(
    r"\w*(?:apikey|password|passwd|secret)s?|(?:access|account|auth|encryption|private|signing|ssh|wandb)keys?|(?:access|api|auth|bot|hf|hub|refresh|session|wandb)tokens?"
)
_NUMBER = lazy_pattern(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


def is_secret(name: str) -> bool:
    """Return whether a value with this name is a secret.

    >>> [name for name in ("api_key", "hfToken", "sort_key", "max_tokens", "token_dropout", "PGPASSWORD") if is_secret(name)]
    ['api_key', 'hfToken', 'PGPASSWORD']
    """
    words = [word.lower() for word in _WORD.findall(name)]
    if not words:
        return False
    last, all_words = words[-1], set(words)
    if all_words & WORDS or last in LAST_WORDS or any(map(_RUN_TOGETHER.fullmatch, words)):
        return not all_words & COUNTED
    if last in ("token", "tokens") or "jwt" in all_words:  # token_dropout is not a token
        return not all_words & (COUNTED | OF_TEXT)
    if last == "pass":
        return bool(all_words & OF_PEOPLE)
    if "pat" in all_words:
        return words == ["pat"] or (last == "pat" and bool(KINDS & all_words))
    return words == ["key"] or (bool({"key", "keys"} & all_words) and bool(KINDS & all_words))


def is_secret_parameter(name: str) -> bool:
    """Return whether a URL parameter contains a secret or, as in presigned URLs, a signature.

    >>> is_secret_parameter("X-Amz-Signature"), is_secret_parameter("page")
    (True, False)
    """
    words = [word.lower() for word in _WORD.findall(name)]
    return bool(words) and (words[-1] in SIGNATURES or is_secret(name))


def is_count(name: str, value: str) -> bool:
    """Return whether a value is a number of tokens or a token id, although its name suggests a secret token.

    >>> is_count("tokens", "512"), is_count("token", "918273645546"), is_count("password", "512")
    (True, False, False)
    """
    return "token" in name.lower() and len(value) < 8 and _NUMBER.fullmatch(value) is not None
