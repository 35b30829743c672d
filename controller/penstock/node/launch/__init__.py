"""Starting a program as a tenant: what kind of program it is, the child, its supervisor."""
