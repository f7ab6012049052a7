"""Headgate as a service: jobs that come and go, a loop that never ends, and an API on loopback."""
