"""A decoder that names items by their codes: Qwen3, Qwen2 and Llama style, in their published file layout."""
