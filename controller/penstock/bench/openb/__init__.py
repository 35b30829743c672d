"""Placement quality on Alibaba's openb trace: `penstock bench openb`.

`trace` reads the lists, `arrivals` makes a run's nodes and Pods, `cluster` has what is free,
`replay` places Pod after Pod by one of `policies`, `migration` makes room by moving Pods, `bound`
says what no policy can pass, `results` compares with the published figures.
"""
