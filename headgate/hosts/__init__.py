"""Where do jobs run, and what does it cost? Leased hosts (VISP, 2016), pure but for the ports.

`leases` has budgets and bills, `capacity` and `provision` decide which hosts are leased and released, `landlord` carries it out.
"""
