"""Parts that sources share: the columns that their authors declare, and files with the offsets of planned epochs."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import types as T

from headgate.errors import EngineError, GraphError


def declared_columns(schema: str, own: Collection[str], source: str) -> list[T.StructField]:
    """Return the columns of a schema; refuse columns that a source of this name adds itself. Needs a running Spark."""
    try:
        parsed = T.StructType.fromDDL(schema)
    except PySparkException as error:
        raise GraphError(f'the schema {schema!r} cannot be read; write it like "id long, user string"') from error
    fields = parsed.fields if isinstance(parsed, T.StructType) else []
    if not fields:
        raise GraphError(f'the schema {schema!r} names no columns; write it like "id long, user string"')
    for column in fields:
        if column.name.lower() in own:
            raise GraphError(
                f'the schema has a column "{column.name}", which a {source} source adds itself; rename the field'
            )
    return [T.StructField(column.name, column.dataType) for column in fields]


def remembered(path: Path, kind: Any, is_replaceable: bool) -> Any:
    """Return the marks in a source's file; empty if there is no file, or if it is damaged and the next plan replaces it."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, kind])
    except FileNotFoundError:
        return {}
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        if is_replaceable:
            return {}
        raise EngineError(
            f'"{path}" is damaged ({error}), and it is not known where the job began to read;'
            " remove the job and submit it again"
        ) from None
