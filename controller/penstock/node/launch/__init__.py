"""Starting a program as a tenant: its kind of executable, the child process, its supervisor."""
