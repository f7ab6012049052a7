"""Measurements of a job for the controller: rows, arrival times, busy time of lanes, lag, and the duration of each part of an epoch."""
