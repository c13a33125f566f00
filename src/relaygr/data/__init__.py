"""Events on disk, readers that make them, a seeded generator, splits by time and statistics; numpy only."""
