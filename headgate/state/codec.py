"""Encodes the values of the state library as bytes: a value that is read after an epoch is equal to the value set, and of the same type.

MessagePack holds None, booleans, numbers, texts, bytes, lists and dicts. The other types of the table are its extension types:

| code | type | content |
|---|---|---|
| 1, 2, 3 | tuple, set, frozenset | the elements; elements of a set in the order of their bytes |
| 4 | whole number beyond 64 bits | its bytes |
| 5 | `Decimal` | its text |
| 6, 7 | `date`, `datetime` | fields and time zone |
| 8 | `timedelta` | days, seconds, microseconds |
| 9 | dict with names that MessagePack cannot hold | pairs |
| 10 | a whole row with any of these types, or with a list or a dict | the row |

Most rows hold only scalars, and are written and read without a check of their content.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from itertools import chain
from types import NoneType
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import xxhash

from headgate.core.quantities import shown
from headgate.errors import StateError

Ext = msgspec.msgpack.Ext
_encode = msgspec.msgpack.Encoder().encode
SCALARS = frozenset((int, float, bool, bytes, NoneType))
"""Types with values that `encode_scalars` always keeps; a text is kept only without lone surrogates."""
_PLAIN = SCALARS | {str}
"""Types that MessagePack holds directly, except whole numbers beyond 64 bits."""
_TUPLE, _SET, _FROZENSET, _WHOLE, _DECIMAL, _DATE, _DATETIME, _TIMEDELTA, _PAIRS, _DEEP = range(1, 11)
DEEP = frozenset((0xC7, 0xC8, 0xC9, *range(0xD4, 0xD9)))
"""First bytes of a row that is an extension type, and that `encode` has to write again."""
_KEPT = "None, bool, int, float, str, bytes, Decimal, date, datetime, timedelta, and list, tuple, set, frozenset and dict of them"


def check(thing: Any) -> None:
    """Refuse a value that state cannot keep."""
    _checked_bytes(lambda: _encode(_packed(thing)))


def encode_scalars(content: Any) -> bytes:
    """Encode a row of scalars."""
    try:
        return _encode(content)
    except OverflowError:  # a whole number beyond 64 bits
        return encode(content)


def encode(content: Any) -> bytes:
    """Encode a row of any values; `StateError` if state cannot keep one of them."""
    return _checked_bytes(lambda: _encode(content if _is_plain(content) else Ext(_DEEP, _encode(_packed(content)))))


def decode(data: bytes | memoryview) -> Any:
    """Decode an encoded row."""
    return _decoder.decode(data)


def code_of(name: Any) -> int:
    """A number that is the same for names that are equal in a dict, in every process and at any time."""
    return xxhash.xxh3_64_intdigest(_encode(name) if type(name) is str else encode(_canonical(name)))


def _checked_bytes(encoded: Callable[[], bytes]) -> bytes:
    try:
        return encoded()
    except UnicodeEncodeError as error:
        raise StateError(f"state cannot keep a text with a lone surrogate: {error.object!a:.60}") from None
    except RecursionError:
        raise StateError("state cannot keep a thing that contains itself, or is nested too deeply") from None


# -- encoding ----------------------------------------------------------------------------------------------------------


def _is_plain(content: Any) -> bool:
    """Whether a row consists of scalars, or of lists of them, none of which exceeds 64 bits."""
    things = content if type(content) is list else [content]
    flat = list(chain.from_iterable(thing if type(thing) is list else (thing,) for thing in things))
    return set(map(type, flat)) <= _PLAIN and all(_fits(thing) for thing in flat if type(thing) is int)


def _fits(thing: int) -> bool:
    return -(1 << 63) <= thing < 1 << 64


def _packed(thing: Any) -> Any:
    kind = type(thing)
    if kind in _PLAIN and kind is not int:
        return thing
    pack = _PACKED.get(kind)
    if pack is None:
        raise StateError(f"state cannot keep {shown(thing)}, which is of type {kind.__name__}; it keeps {_KEPT}")
    return pack(thing)


def _packed_int(thing: int) -> Any:
    if _fits(thing):
        return thing
    return Ext(_WHOLE, thing.to_bytes(thing.bit_length() // 8 + 1, "big", signed=True))


def _packed_dict(thing: dict[Any, Any]) -> Any:
    names = set(map(type, thing))
    if names <= _PLAIN and (int not in names or all(_fits(name) for name in thing if type(name) is int)):
        return {name: _packed(value) for name, value in thing.items()}
    return Ext(_PAIRS, _encode([[_packed(name), _packed(value)] for name, value in thing.items()]))


def _packed_set(code: int) -> Callable[[Any], Any]:
    """A function that encodes a set in the order of the elements' bytes, because the order of a set differs from process to process."""
    return lambda thing: Ext(
        code, _encode([msgspec.Raw(data) for data in sorted(_encode(_packed(one)) for one in thing)])
    )


def _packed_datetime(thing: datetime) -> Any:
    plain = thing.replace(tzinfo=None).isoformat()
    return Ext(_DATETIME, _encode([plain, thing.fold, _zone(thing)]))


def _zone(thing: datetime) -> Any:
    """The encoded time zone of a datetime: None, the name of a zone, or the offset and name of a fixed zone."""
    zone = thing.tzinfo
    if zone is None or (type(zone) is ZoneInfo and zone.key):
        return None if zone is None else zone.key
    if type(zone) is not timezone:
        raise StateError(
            f"state cannot keep {thing!r}: its time zone is of type {type(zone).__name__};"
            " use datetime.timezone or zoneinfo.ZoneInfo"
        )
    offset = zone.utcoffset(None)
    name = zone.tzname(None)
    return [offset.days, offset.seconds, offset.microseconds, None if name == timezone(offset).tzname(None) else name]


_PACKED: Mapping[type, Callable[[Any], Any]] = {
    int: _packed_int,
    list: lambda thing: list(map(_packed, thing)),
    dict: _packed_dict,
    tuple: lambda thing: Ext(_TUPLE, _encode(list(map(_packed, thing)))),
    set: _packed_set(_SET),
    frozenset: _packed_set(_FROZENSET),
    Decimal: lambda thing: Ext(_DECIMAL, str(thing).encode()),
    date: lambda thing: Ext(_DATE, thing.isoformat().encode()),
    datetime: _packed_datetime,
    timedelta: lambda thing: Ext(_TIMEDELTA, _encode([thing.days, thing.seconds, thing.microseconds])),
}


# -- decoding ----------------------------------------------------------------------------------------------------------


def _unpacked_datetime(data: memoryview) -> datetime:
    plain, fold, zone = decode(data)
    return datetime.fromisoformat(plain).replace(tzinfo=_zone_of(zone), fold=fold)


def _zone_of(zone: Any) -> tzinfo | None:
    if zone is None or isinstance(zone, str):
        return None if zone is None else ZoneInfo(zone)
    days, seconds, microseconds, name = zone
    offset = timedelta(days, seconds, microseconds)
    return timezone(offset, name) if name is not None else timezone(offset) if offset else UTC


_UNPACKED: Mapping[int, Callable[[memoryview], Any]] = {
    _TUPLE: lambda data: tuple(decode(data)),
    _SET: lambda data: set(decode(data)),
    _FROZENSET: lambda data: frozenset(decode(data)),
    _WHOLE: lambda data: int.from_bytes(data, "big", signed=True),
    _DECIMAL: lambda data: Decimal(bytes(data).decode()),
    _DATE: lambda data: date.fromisoformat(bytes(data).decode()),
    _DATETIME: _unpacked_datetime,
    _TIMEDELTA: lambda data: timedelta(*decode(data)),
    _PAIRS: lambda data: dict(decode(data)),
    _DEEP: decode,
}
_decoder = msgspec.msgpack.Decoder(ext_hook=lambda code, data: _UNPACKED[code](data))


# -- names -------------------------------------------------------------------------------------------------------------


def _canonical(name: Any) -> Any:
    """A form of the name that is the same for equal names: 1, 1.0, True and Decimal(1) are one name, as in a dict."""
    kind = type(name)
    if kind in (str, bytes, NoneType, int):
        return name
    if kind in (bool, float, Decimal):
        return _canonical_number(name)
    if kind is tuple:
        return [1, *map(_canonical, name)]
    if kind is frozenset:
        return [2, *sorted(encode(_canonical(one)) for one in name)]
    if kind is datetime and name.utcoffset() is not None:
        return [3, (name - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)]
    if kind in (datetime, date, timedelta):
        return [4, kind.__name__, str(name)]
    raise StateError(
        f"{shown(name)} cannot be a name, because it is of type {kind.__name__}; a name may be None, bool, int, float, str,"
        " bytes, Decimal, date, datetime, timedelta, or tuple or frozenset of them"
    )


def _canonical_number(name: float | Decimal) -> Any:
    if math.isnan(name):
        raise StateError("NaN cannot be a name, because it is not equal to itself")
    if math.isinf(name):
        return float(name)
    if name == int(name):
        return int(name)
    return float(name) if float(name) == name else str(Decimal(name).normalize())
