"""Columns by their names, whatever characters a name has."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column


def column_of(name: str) -> Column:
    """Return the column with exactly this name: a dot in the name selects no field, and a backtick ends no quotation."""
    from pyspark.sql import functions as F

    return F.col("`{}`".format(name.replace("`", "``")))
