"""The scheduler of Henge (SoCC '18), pure: chooses which job to help, and judges the effect.

`rules` holds the table of rules, `memory` the scheduler's state, `judgement` judges the last action, `help` chooses the change for one
job, `policies` puts the scheduler and the baselines behind one interface.
"""
