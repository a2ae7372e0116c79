"""What a torture of a live cluster is made of: networks that can be cut, and the traffic and observers of a run."""
