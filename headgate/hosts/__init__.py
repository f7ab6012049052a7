"""Leased hosts: where jobs run, and what the hosts cost (VISP, 2016); pure apart from the ports.

`leases` holds budgets and bills, `slots` and `provision` decide which hosts are leased and released, `landlord` carries out the decisions.
"""
