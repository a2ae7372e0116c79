"""TreeCast: groups form a tree, and the lowest common ancestor of its destinations orders a message."""
