"""What parts say, keep and remember: bodies, records and states. Never compiled, see `amcast.kernel.message`."""
