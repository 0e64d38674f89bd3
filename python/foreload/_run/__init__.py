"""A run apart from any framework: where it stands, what it waits for, how bytes become samples, and how it went."""
