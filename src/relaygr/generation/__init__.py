"""Semantic-id generation: catalogue index, constrained beam search, selection, building of semantic ids."""
