"""Semantic ids: items named by a few codes each, made from their embeddings."""
