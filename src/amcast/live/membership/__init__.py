"""Members of the groups at run time: changes, catching up, lost state, and the owner of a data folder."""
