"""This process and its node: the agent's connection, sources and their credentials, jobs, and which ranks share the node."""
