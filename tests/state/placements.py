"""Tools for slices on hosts and lanes: what is still to be done for a placement, and which slices a lane has."""

from __future__ import annotations

from headgate.state.placement.routing import Routing
from headgate.state.placement.slices import Act, Done, Placement, end_of_phase


def due(placement: Placement) -> tuple[Done, ...]:
    """The end of every phase that a migration is in, and every backup that is missing."""
    found: list[Done] = []
    for slice_, place in enumerate(placement.places):
        if place.migration is not None:
            found.append(end_of_phase(slice_, place.migration))
        found += [Done(Act.BACK_UP, slice_, host) for host in place.backups if host not in place.ready]
    return tuple(found)


def slices_of_lane(routing: Routing, lane: int) -> tuple[int, ...]:
    return tuple(slice_ for slice_, of in enumerate(routing.lane_of) if of == lane)
