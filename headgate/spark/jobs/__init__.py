"""Jobs of the engine: loaded from job files, started, retried, in which phase."""
