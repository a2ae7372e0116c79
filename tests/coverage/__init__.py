"""Which lines of protocols, parts and storage fuzzing alone executes."""
