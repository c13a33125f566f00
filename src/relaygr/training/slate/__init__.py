"""Training and offline evaluation of slates."""
