"""What the controller learns of a job: rows, arrival times, busy time of lanes, lag, and the time that each part of an epoch took."""
