"""treecast."""
