"""Finds out why a job misses its intent, and proposes a remedy: the pipeline of Dhalion (VLDB '17), pure.

`records` holds the data types, `sensing` the built-in sensor and detectors, `diagnosing` the diagnosers, `resolving` the resolvers,
`policies` combines these parts, and `examining` runs one examination: wait, measure, judge the last remedy, propose the next.
"""
