"""What a cache of user states would hit: traces of requests, replays through a policy, sizes of tiers."""
