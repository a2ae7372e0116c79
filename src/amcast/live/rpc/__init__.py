"""RPC of replicas: messages, server, client, and subscriptions on top of it."""
