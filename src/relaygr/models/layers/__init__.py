"""The layers between tokens and heads: HSTU with its switches, and the causal transformer."""
