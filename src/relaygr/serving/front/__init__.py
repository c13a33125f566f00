"""Configuration of proxies that stand in front of instances."""
