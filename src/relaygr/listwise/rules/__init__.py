"""What a list must hold: rules as data, their automata, the exact search, relaxation, the final check."""
