"""Encryption: encrypt the files of a checkpoint with AES-256-GCM, from the package `cryptography`.

An encrypted file begins with MAGIC and a random salt. The file's own key is derived from the checkpoint key and this salt.
The rest of the file consists of pieces of PIECE_BYTES, each with an authentication tag. A piece's nonce consists of its number
and a flag for the last piece. Any attempt to change, move, repeat or cut off a piece is therefore detected. The file's name is
authenticated too. `manifest.json` is not encrypted. It contains the key's fingerprint and the digests of the encrypted files,
so a checkpoint can be verified, listed and deleted without the key.

A key is read from a file or an environment variable. The process keeps the keys in memory, by fingerprint. Keys are never
written anywhere, and messages never contain them.
"""

from __future__ import annotations

import hmac
import io
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hookpoint.core.errors import BadArgument, CannotResume, DamagedCheckpoint
from hookpoint.storage.disk import disk

CIPHER = "AES-256-GCM"
MAGIC, SALT_BYTES, TAG_BYTES, KEY_BYTES = b"hookpt01", 16, 16, 32
PIECE_BYTES = 1 << 20
VARIABLE, FILE_VARIABLE = "HOOKPOINT_CHECKPOINT_KEY", "HOOKPOINT_CHECKPOINT_KEY_FILE"
ENVIRONMENT = "env:"
FORMS = "32 random bytes, as bytes, 64 hex digits or base64"
MAKE = "openssl rand -hex 32 > run.key"
_HEX = re.compile(r"[0-9A-Fa-f]{64}")
_LIKE_A_KEY = re.compile(r"[0-9A-Fa-f]{32,}|[A-Za-z0-9+/_-]{42,}={0,2}")


class Key:
    """A key for encrypting checkpoints. Its repr shows its fingerprint, never the key itself."""

    __slots__ = ("_secret", "fingerprint")

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.fingerprint = hmac.digest(secret, b"hookpoint checkpoint key", "sha256")[:8].hex()

    def __repr__(self) -> str:
        return f"Key({self.fingerprint})"

    def __reduce__(self) -> Any:
        raise TypeError("a checkpoint key cannot be pickled")

    def describe(self) -> dict[str, str]:
        """Return the manifest entry for this key."""
        return {"cipher": CIPHER, "key": self.fingerprint}

    def cipher(self, salt: bytes) -> Any:
        """Return the cipher for the file with this salt."""
        return _aesgcm()(hmac.digest(self._secret, b"hookpoint checkpoint file" + salt, "sha256"))


class EncryptedStream:
    """A stream that encrypts data and writes it to another stream. `finish` writes the last piece."""

    def __init__(self, stream: Any, name: str, key: Key) -> None:
        salt = os.urandom(SALT_BYTES)
        self._stream, self._cipher, self._header = stream, key.cipher(salt), MAGIC + salt
        self._context, self._number, self._size, self._buffer = self._header + name.encode(), 0, 0, bytearray()
        stream.write(self._header)

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._size += len(view)
        start = 0
        while start < len(view):
            taken = view[start : start + PIECE_BYTES]
            self._buffer += taken
            start += len(taken)
            while len(self._buffer) > PIECE_BYTES:  # `finish` writes the last piece
                self._put(bytes(self._buffer[:PIECE_BYTES]), is_last=False)
                del self._buffer[:PIECE_BYTES]
        return len(view)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Do nothing. Libraries expect this method."""

    def close(self) -> None:
        """Do nothing. `finish` writes the last piece."""

    def finish(self) -> None:
        """Write the last piece."""
        self._put(bytes(self._buffer), is_last=True)

    def _put(self, piece: bytes, *, is_last: bool) -> None:
        self._stream.write(self._cipher.encrypt(_nonce(self._number, is_last), piece, self._context))
        self._number += 1


@contextmanager
def encrypted(stream: Any, name: str, key: Key | None) -> Iterator[Any]:
    """Yield a stream that encrypts data and writes it to `stream`. Without a key, yield `stream` itself."""
    if key is None:
        yield stream
    else:
        writer = EncryptedStream(stream, name, key)
        yield writer
        writer.finish()


def plain_source(file: Path, encryption: Mapping[str, Any]) -> Any:
    """Return a source for reading a checkpoint file: its path or, if it is encrypted, a stream with the decrypted bytes.

    The whole file is decrypted and authenticated before the function returns.
    """
    return io.BytesIO(_decrypted(file, _key_for(file.parent, encryption))) if encryption else file


def require_key(folder: Path, encryption: Mapping[str, Any]) -> None:
    """Raise CannotResume if a checkpoint is encrypted and its key is unknown."""
    if encryption:
        _key_for(folder, encryption)


def _decrypted(file: Path, key: Key) -> bytes:
    data = memoryview(disk.read(file))
    start = len(MAGIC) + SALT_BYTES
    header = bytes(data[:start])
    if len(data) < start + TAG_BYTES or header[: len(MAGIC)] != MAGIC:
        raise DamagedCheckpoint(f"{file.parent} is damaged: {file.name} is not an encrypted file.")
    cipher, context, pieces = key.cipher(header[len(MAGIC) :]), header + file.name.encode(), []
    from cryptography.exceptions import InvalidTag

    try:
        for number, at in enumerate(range(start, len(data), PIECE_BYTES + TAG_BYTES)):
            piece = data[at : at + PIECE_BYTES + TAG_BYTES]
            is_last = at + len(piece) == len(data)
            pieces.append(cipher.decrypt(_nonce(number, is_last), piece, context))
    except (InvalidTag, ValueError):
        raise DamagedCheckpoint(f"{file.parent} is damaged: {file.name} was changed after it was encrypted.") from None
    return b"".join(pieces)


def _nonce(number: int, is_last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([is_last])


def _aesgcm() -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ModuleNotFoundError as error:
        raise ImportError("encrypted checkpoints need cryptography: pip install 'hookpoint[crypto]'") from error
    return AESGCM


# Keys

_known: dict[str, Key] = {}  # keyed by fingerprint


def key_for_workdir(source: str | os.PathLike[str] | None, workdir: Any) -> Key | None:
    """Read the key for a run's checkpoints. Return None if `source` is None. Raise if there is a key but no workdir."""
    if source is None:
        return None
    if workdir is None:
        raise BadArgument("checkpoint_key needs a workdir: without one, no checkpoints are written.", give="workdir=...")
    return load_key(source)


def load_key(source: str | os.PathLike[str], *, argument: str = "checkpoint_key") -> Key:
    """Read a key from a file or, with "env:NAME", from an environment variable, and keep it in memory."""
    _aesgcm()
    if isinstance(source, bytes | bytearray):
        raise BadArgument(f"{argument} must be a file or 'env:NAME', not the key itself.", write=f'{argument}="run.key"')
    text = os.fspath(source)
    if text.startswith(ENVIRONMENT):
        name = text.removeprefix(ENVIRONMENT)
        if not os.environ.get(name):
            raise BadArgument(f"{argument}={text!r}: the environment variable {name} is not set.", set=f"it to {FORMS}")
        secret, where = os.environ[name].encode(), f"the environment variable {name}"
    else:
        file = Path(text).expanduser()
        try:
            secret, where = file.read_bytes(), str(file)
        except OSError as error:
            if _LIKE_A_KEY.fullmatch(text):
                raise BadArgument(
                    f"{argument} must be a file or 'env:NAME', not the key itself.", write=f'{argument}="run.key"'
                ) from None
            why = error.strerror or type(error).__name__
            raise BadArgument(f"{argument}: {file} cannot be read: {why}.", create=f"a key with {MAKE}") from None
    key = Key(_parsed(secret, f"{argument}: {where}"))
    _known[key.fingerprint] = key
    return key


def _parsed(data: bytes, what: str) -> bytes:
    if len(data) == KEY_BYTES:
        return data
    text = data.strip().decode("ascii", errors="replace")
    if _HEX.fullmatch(text):
        return bytes.fromhex(text)
    import base64

    try:
        secret = base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except ValueError:
        secret = b""
    if len(secret) != KEY_BYTES:
        raise BadArgument(f"{what} does not contain a key: it must be {FORMS}.", create=f"a key with {MAKE}")
    return secret


def known_keys() -> tuple[str, ...]:
    """Return the fingerprints of the keys that this process was given, or that are in the environment."""
    if os.environ.get(VARIABLE) or os.environ.get(FILE_VARIABLE):
        _load_from_environment()
    return tuple(_known)


def _load_from_environment() -> None:
    if os.environ.get(VARIABLE):
        load_key(f"{ENVIRONMENT}{VARIABLE}", argument=VARIABLE)
    elif os.environ.get(FILE_VARIABLE):
        load_key(os.environ[FILE_VARIABLE], argument=FILE_VARIABLE)


def _key_for(folder: Path, encryption: Mapping[str, Any]) -> Key:
    """Return the key for a checkpoint: one that this process has already loaded, or one from the environment."""
    fingerprint = str(encryption.get("key"))
    if encryption.get("cipher") != CIPHER:
        raise CannotResume(f"{folder} is encrypted with {encryption.get('cipher')}; this release reads {CIPHER}.")
    _aesgcm()
    if fingerprint not in _known:
        _load_from_environment()
    if fingerprint not in _known:
        other = ", ".join(_known)
        given = f"the key given has fingerprint {other}" if other else "no key was given"
        raise CannotResume(
            f"{folder} is encrypted with the key with fingerprint {fingerprint}, but {given}.",
            give="checkpoint_key= to the Runner or Loop, or key= to load_weights",
            set=f"{FILE_VARIABLE} to the file with the key",
        )
    return _known[fingerprint]
