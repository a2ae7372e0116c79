"""The only room with sockets, files and coroutines: it hosts the very objects that the simulator runs."""
