"""Measures: small tables about runs, from traces or from the cells of a sweep."""
