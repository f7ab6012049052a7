"""Policies of users: each runs in its own process, so that a failure of a policy never stops the control loop."""
