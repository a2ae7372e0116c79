"""The wire: frames, links, connections, and the network that owns them."""
