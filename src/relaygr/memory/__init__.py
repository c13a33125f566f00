"""The bytes behind user states: page pools and private buffers; no policy."""
