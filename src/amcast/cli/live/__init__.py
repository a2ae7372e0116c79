"""Commands of the live cluster: start, stop, send, tail, observe, change members, measure."""
