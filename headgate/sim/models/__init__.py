"""Models of execution: long-lived threads, micro-batches, one queue per lane, and leased hosts."""
