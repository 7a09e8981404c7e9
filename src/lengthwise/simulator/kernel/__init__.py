"""One engine compiled: the semantics of vLLM's v1 scheduler, step by step, on arrays.

It knows no policy. Where a decision is a policy's, it stops with a question, and the host asks the policy itself.
"""
