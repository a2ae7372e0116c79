"""FlexCast: groups stand in a line, and bodies carry the history that lower groups have delivered."""
