"""Events from a stream: the consumer, where it puts them, metrics."""
