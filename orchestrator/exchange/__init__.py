"""Files of other tools: read into a store of ours, and written from one."""
