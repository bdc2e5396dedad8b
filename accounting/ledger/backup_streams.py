"""Lines of a backup as bytes and back: compressed by Zstandard, and encrypted by age for public keys.

Promises: lines pass piece by piece, in bounded memory; what is encrypted is nowhere written in plain; bytes that were
cut short or altered are an error by the time the last line is read.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa

from dpserve.accounting.ledger.errors import CannotRecover, SecretKeyMissing
from dpserve.accounting.messages import Message

_PIECE = 1 << 18
_AGE = b"age-encryption.org/"
_ZSTANDARD = b"\x28\xb5\x2f\xfd"
_SSH = "ssh-"


class AgeMissing(CannotRecover):
    """The package that encrypts is not installed."""

    def __init__(self) -> None:
        """Say what to install."""
        super().__init__("encrypted backups need pyrage: pip install 'dpserve[backups]'")


def _age() -> Any:
    try:
        import pyrage
    except ImportError:
        raise AgeMissing from None
    return pyrage


def recipients(texts: Sequence[str]) -> list[Any]:
    """Read public keys: of age (`age1...`) or of SSH (`ssh-ed25519 ...`, `ssh-rsa ...`). Raises ValueError."""
    if not texts:
        return []
    age, found = _age(), []
    for text in texts:
        kind = age.ssh.Recipient if text.startswith(_SSH) else age.x25519.Recipient
        try:
            found.append(kind.from_str(text.strip()))
        except age.RecipientError as error:
            raise ValueError(f"{text!r} is no public key that a backup can be encrypted for: {error}") from error
    return found


def identities(file: Path | None) -> list[Any]:
    """Read the secret keys of a file, if one is named: as age-keygen writes them, or of SSH.

    Raises ValueError for any other file.
    """
    if file is None:
        return []
    age, data = _age(), file.read_bytes()
    try:
        if data.startswith(b"-----BEGIN"):
            return [age.ssh.Identity.from_buffer(data)]
        lines = [line.strip() for line in data.decode().splitlines()]
        keys = [age.x25519.Identity.from_str(line) for line in lines if line and not line.startswith("#")]
    except (age.IdentityError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is no file of secret keys of age or SSH: {error}") from error
    if not keys:
        raise ValueError(f"{file} holds no secret key")
    return keys


class LineWriter:
    """Writes lines to a sink, compressed and, for any recipients, encrypted: use `writing`."""

    def __init__(self, stream: Any) -> None:
        """Write to a stream that compresses."""
        self._stream = stream
        self._waiting: list[bytes] = []
        self._size = 0

    def write(self, line: str) -> None:
        """Write a line, now or later."""
        data = line.encode()
        self._waiting.append(data)
        self._size += len(data)
        if self._size >= _PIECE:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        self._stream.write(b"".join(self._waiting))
        self._waiting, self._size = [], 0


@contextmanager
def writing(sink: BinaryIO, keys: Sequence[Any] = ()) -> Iterator[LineWriter]:
    """Give a writer of lines to a sink, which is left open. keys: the `recipients`, if any."""
    with _encrypting(sink, keys) if keys else _plain(sink) as inner, _compressing(inner) as stream:
        writer = LineWriter(stream)
        yield writer
        writer.flush()


@contextmanager
def _plain(sink: BinaryIO) -> Iterator[BinaryIO]:
    yield sink


@contextmanager
def _compressing(sink: BinaryIO) -> Iterator[Any]:
    # A stream that is closed closes the one below it, which is not its own.
    with pa.CompressedOutputStream(pa.PythonFile(_Unclosed(sink), mode="w"), "zstd") as stream:
        yield stream


class _Unclosed:
    """A file whose `close` does nothing."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.write, self.flush = file.write, file.flush

    def close(self) -> None:
        pass


@contextmanager
def _encrypting(sink: BinaryIO, keys: Sequence[Any]) -> Iterator[BinaryIO]:
    age = _age()
    reading, written = os.pipe()
    with os.fdopen(reading, "rb") as source, os.fdopen(written, "wb") as plain:
        thread = _Thread(lambda: age.encrypt_io(source, sink, keys))
        try:
            yield plain
        finally:
            with suppress(BrokenPipeError):
                plain.close()
            thread.join()


class _Thread(threading.Thread):
    """Runs until it is joined, which raises what it raised."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__(name="dpserve-backup", daemon=True)
        self._work = work
        self._failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001  it is raised by `join`
            self._failure = error

    def join(self, timeout: float | None = None) -> None:
        super().join(timeout)
        if self._failure is not None:
            raise self._failure


def read_lines(source: BinaryIO, keys: Sequence[Any] = ()) -> Iterator[str]:
    """Yield the lines of a backup. keys: the `identities` for one that is encrypted.

    Raises CannotRecover for bytes that are no backup's, were cut short or altered, or that no key decrypts; OSError
    where they cannot be read.
    """
    start = source.read(len(_AGE))
    whole = _Joined(start, source)
    if start.startswith(_AGE):
        if not keys:
            raise SecretKeyMissing(Message("the file is encrypted: name the file of a secret key with {identity}"))
        yield from _decrypted_lines(whole, keys)
    elif start.startswith(_ZSTANDARD):
        yield from _decompressed_lines(cast(BinaryIO, whole))
    else:
        yield from _split(iter(lambda: whole.read(_PIECE), b""))


class _Joined:
    """Bytes that were read, and what follows them."""

    def __init__(self, start: bytes, source: BinaryIO) -> None:
        self._start, self._source = start, source

    def read(self, size: int = -1) -> bytes:
        if self._start:
            part, self._start = self._start, b""
            return part
        return self._source.read(size)


def _decrypted_lines(source: _Joined, keys: Sequence[Any]) -> Iterator[str]:
    age = _age()
    reading, written = os.pipe()

    def decrypt() -> None:
        with os.fdopen(written, "wb") as sink:
            age.decrypt_io(source, sink, keys)

    with os.fdopen(reading, "rb") as plain:
        thread, is_wanted = _Thread(decrypt), True
        try:
            start = plain.read(len(_ZSTANDARD))
            if start == _ZSTANDARD:
                yield from _decompressed_lines(cast(BinaryIO, _Joined(start, plain)))
        except GeneratorExit:
            is_wanted = False
            raise
        finally:
            plain.close()  # which ends the thread, if the lines are not wanted any more
            try:
                thread.join()
            except Exception as error:
                if is_wanted:
                    raise CannotRecover(f"the backup cannot be decrypted: {error}") from error


def _decompressed_lines(source: BinaryIO) -> Iterator[str]:
    with pa.CompressedInputStream(pa.PythonFile(_Unread(source), mode="r"), "zstd") as stream:

        def piece() -> bytes:
            try:
                return bytes(stream.read(_PIECE))
            except (OSError, pa.ArrowException) as error:
                raise CannotRecover(f"the backup is cut short or was altered: {error}") from error

        yield from _split(iter(piece, b""))


class _Unread:
    """A file of which reading and nothing else is asked."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self.read = file.read

    def close(self) -> None:
        pass


def _split(pieces: Iterator[bytes]) -> Iterator[str]:
    left: list[bytes] = []
    for piece in pieces:
        first, *lines = piece.split(b"\n")
        left.append(first)
        if lines:
            yield _text(b"".join(left))
            yield from map(_text, lines[:-1])
            left = [lines[-1]]
    if rest := b"".join(left):
        yield rest.decode(errors="replace")


def _text(line: bytes) -> str:
    return line.decode(errors="replace") + "\n"
