"""FlexCast."""
