"""What `headgate run` starts: a parent process, and a service with control loop, job registry, tenants, API and dashboard."""
