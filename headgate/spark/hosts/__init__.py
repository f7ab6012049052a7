"""Hosts of the cluster: their tasks and heartbeats, and a pool of local hosts that can be leased."""
