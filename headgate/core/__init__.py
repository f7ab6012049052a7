"""The vocabulary of Headgate and its arithmetic, pure: jobs, intents, readings, latency, metrics, sizing."""
