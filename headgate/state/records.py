"""Small JSON files with a checksum: a wrong bit is detected as damage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import xxhash

from headgate.errors import StateDamagedError

Content = TypeVar("Content")


@dataclass(frozen=True, slots=True)
class _Sealed:
    checksum: str
    content: msgspec.Raw


def seal(content: object) -> bytes:
    """The content as a record with its checksum.

    >>> unseal(seal({"epoch": 7}), dict[str, int], "a record")
    {'epoch': 7}
    """
    body = msgspec.json.encode(content)
    return b'{"checksum":"%s","content":%s}\n' % (xxhash.xxh3_128_hexdigest(body).encode(), body)


def unseal(data: Any, kind: type[Content], name: str) -> Content:
    """The content of a record; `StateDamagedError` if the checksum does not match."""
    try:
        found = msgspec.json.decode(memoryview(data), type=_Sealed)
        body = bytes(found.content)
        if xxhash.xxh3_128_hexdigest(body) != found.checksum:
            raise StateDamagedError(f'"{name}" is damaged: its checksum does not match')
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, ValueError) as error:  # ValueError: text that is not UTF-8
        raise StateDamagedError(f'"{name}" is damaged: {error}') from None
