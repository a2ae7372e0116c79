"""The gate of planted bugs: well-known mistakes, each of which fuzzing must find within a stated number of seeds."""
