"""User-defined policies: each runs in its own process, so that a failing policy never stops the control loop."""
