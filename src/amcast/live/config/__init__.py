"""cluster.toml: reading, rewriting after a change of members, and certificates for it."""
