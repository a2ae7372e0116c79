"""The ring: a message visits its destinations in the order of the groups, and each is locked until the last has it."""
