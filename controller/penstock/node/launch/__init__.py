"""Start of a program as a tenant: inspection of its executable, child process, supervision."""
