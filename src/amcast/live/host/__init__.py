"""The host of one process: its loop, effects, timers and deliveries."""
