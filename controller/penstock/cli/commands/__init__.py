"""Sub-commands: each module parses the arguments of one command and calls a layer below."""
