"""Version 1. Fields are only ever added."""
