"""What one process of the cluster does: policies and caps, replicas, and why Pods wait.

Several run, one leads (`leader`). Nothing is kept here but what can be asked for again: policies'
status and caps' ledgers lie in their objects, the number of replicas in the workloads themselves.
"""
