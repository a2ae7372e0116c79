"""What each protocol says: bodies, records and states. Never compiled, see `amcast.kernel.message`."""
