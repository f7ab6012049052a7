"""Headgate shares one cluster among many streaming jobs, by intent."""

from headgate.core.intents import Intent

__all__ = ["Intent", "__version__"]

__version__ = "0.1.0"
