"""Services that ship with amcast: applications of the papers, as users would write them."""
