"""Existing Structured Streaming queries as jobs: records the queries of a script, takes over their checkpoints, runs them as jobs."""
