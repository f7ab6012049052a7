"""Why does a job miss its intent, and what is the remedy? The pipeline of Dhalion (VLDB '17), pure; the health of hosts is elsewhere.

`records` holds the data types, `sensing` the built-in sensor and detectors, `diagnosing` the diagnosers, `resolving` the resolvers,
`policies` combines these parts, and `examining` runs one examination: wait, measure, judge the last remedy, propose the next.
"""
