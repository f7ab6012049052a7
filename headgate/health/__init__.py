"""Why does a job suffer, and what is the remedy? The health pipeline of Dhalion (VLDB '17), pure.

`records` has what passes through it, `sensing` the built-in sensor and detectors, `diagnosing` the diagnosers, `resolving` the
resolvers, `policies` what they are put together to, and `care` the step: wait, measure, judge the last action, act.
"""
