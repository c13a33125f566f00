"""Settings as typed sections, read from defaults, TOML, environment and overrides."""
