"""One paper, one file. A protocol decides what a message means; it knows no socket, no clock, no chance."""
