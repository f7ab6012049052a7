"""The second engine: a simulator in virtual time, its models, scenarios, reports and plots."""
