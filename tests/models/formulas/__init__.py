"""Every ranker in plain numpy float64, the whole row at once, from the weight file's tensors alone."""
