"""What requests contain: drawn messages, conversations, prompts from files."""
