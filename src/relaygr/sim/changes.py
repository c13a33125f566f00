"""What happens to instances on the way: killed, joined, drained, moved to the next build."""

from __future__ import annotations

from relaygr.sim.fleet import Fleet, fingerprint, member, name
from relaygr.sim.world import Change


def apply(fleet: Fleet, change: Change) -> None:
    """Let it happen now; what it asks of an instance that is not there, or no longer, is nothing."""
    number, now_s = change.instance, fleet.now_s
    if change.kind == "join":
        _join(fleet, number, now_s)
    elif number < len(fleet.instances) and fleet.instances[number].alive:
        instance = fleet.instances[number]
        if change.kind == "kill":
            fleet.again(instance.kill(), number)
        elif change.kind == "drain":
            instance.accepts = False
            fleet.router.members.drain(name(number), now_s)
        else:
            fleet.builds[number] += 1
            instance.swap(fingerprint(fleet.builds[number]))


def _join(fleet: Fleet, number: int, now_s: float) -> None:
    """A process starts, in the place of one that is gone or beside the others, and says that it is ready."""
    members = fleet.router.members
    if number < len(fleet.instances):
        if fleet.instances[number].alive and fleet.instances[number].accepts:
            return
        fleet.instances[number] = fleet.start(number, fleet.builds[number])
        if members[name(number)].held:
            members.activate(name(number), now_s)
    else:
        while len(fleet.instances) <= number:
            fleet.builds.append(max(fleet.builds))
            fleet.instances.append(fleet.start(len(fleet.instances), fleet.builds[-1]))
        members.add(member(number), now_s)
    fleet.hear()
