"""The Spark check: P1 to P9 over traces of any size, with the findings of the plain checker."""
