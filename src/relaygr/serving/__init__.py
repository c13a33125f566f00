"""The HTTP service: the only room that knows the web."""
