"""Who gets help, and did it help? The scheduler of Henge (SoCC '18), pure.

`rules` has the table of rules, `memory` what the scheduler remembers, `judgement` the effect of the last action, `help` which help a
job gets, `policies` the scheduler and the baselines behind one interface.
"""
