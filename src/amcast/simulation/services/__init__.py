"""Services in the simulator: the executors of live replicas on simulated nodes, called by coroutines of a user."""
