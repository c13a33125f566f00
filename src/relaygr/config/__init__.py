"""Typed settings, read from TOML, the environment and key=value overrides."""
