"""Functions DataFrame -> DataFrame; the select at the end of each is its contract."""
