"""The Spark engine: one Spark application, one Structured Streaming query per job, everything adjustable between two epochs."""
