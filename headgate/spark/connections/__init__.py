"""Connections to outside systems, shared by sources and sinks: time limits, secrets, and errors in one sentence."""
