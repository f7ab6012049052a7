"""Keyed state of operators, and where their lanes run: slices move between hosts without stopping a job (ChronoStream, ICDE '15)."""
