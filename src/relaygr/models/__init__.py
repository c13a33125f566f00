"""HSTU rankers: configuration, layers, embeddings, heads, weights and cost."""
