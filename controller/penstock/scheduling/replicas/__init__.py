"""Numbers of replicas: how many there should be, from samples and a policy."""
