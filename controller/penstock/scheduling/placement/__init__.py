"""Which shares of which devices a Pod gets on a node, and in words why it gets none.

Pure: no clock, no files, no Kubernetes. `device` is what a node has and what of it is taken, `ask`
what containers want, `fit` brings both together, `reasons` says for many nodes what is missing,
`preempt` who would have to go.
"""
