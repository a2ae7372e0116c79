"""skeen."""
