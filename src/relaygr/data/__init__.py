"""Events: on-disk datasets, readers, the synthetic generator and temporal splits."""
