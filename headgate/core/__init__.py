"""Pure data types and arithmetic of Headgate: jobs, intents, readings, latency, metrics, sizing."""
