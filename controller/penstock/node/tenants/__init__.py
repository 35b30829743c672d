"""A tenant on disk (directory, grant, pages, processes), and the state directory around it."""
