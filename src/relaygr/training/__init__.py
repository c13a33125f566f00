"""Training and offline evaluation of the models."""
