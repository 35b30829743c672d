"""Behind the API server: Pods and claims that ask for vGPUs are checked before they are stored.

`pods` and `claims` say what is wrong with one, `surroundings` looks up what they refer to, `review`
speaks the API server's AdmissionReview, `certificates` and `publish` keep its TLS without anybody's
doing.
"""
