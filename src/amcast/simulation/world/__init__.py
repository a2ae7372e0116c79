"""The physics of a simulated run: a world that lets actions happen and chooses none of them."""
