"""Keyed operators: rows to the lanes of their slices, the inside of a keyed lane, copies of slices on hosts, event time."""
