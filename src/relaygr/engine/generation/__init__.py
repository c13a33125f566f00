"""Generation as a service inside the process: prompts, memory, admission, waves, and who runs when."""
