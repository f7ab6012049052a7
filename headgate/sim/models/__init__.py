"""Models of execution: threads that live on, micro-batches, queues per lane, and paid hosts."""
