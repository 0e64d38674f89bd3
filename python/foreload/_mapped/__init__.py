"""Files that programs map into memory: where in them is what, and having it in the page cache before it is touched."""
