"""Admission webhook: checks Pods and claims that request vGPUs before they are stored.

`pod_review` and `claim_review` find what is wrong with an object, `review_context` looks up what it
refers to, `admission_review` speaks the API server's AdmissionReview, `certificates` and `publish`
maintain the TLS certificates automatically.
"""
