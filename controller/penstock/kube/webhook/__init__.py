"""Admission webhook: checks Pods and claims that request vGPUs before they are stored.

`pod_review` and `claim_review` find what is wrong with an object, `review_context` looks up the
objects that it refers to, `admission_review` handles the API server's AdmissionReview requests, and
`certificates` and `publish` maintain the TLS certificates automatically.
"""
