"""The live system: sockets, files and coroutines around the same process objects that the simulator runs."""
