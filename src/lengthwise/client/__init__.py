"""Clients of engines over HTTP, and the simulated engine's server. Nothing here orders, routes or predicts.

http1              connections and their pool
client             one engine: requests, answers as they arrive, health, models
sse                the only reader of an event stream
kind               which engine a server is
scrape             what an engine reports in /metrics and /v1/models
load               open-loop load from a workload
offline            requests whose answers are wanted together: their order, engines and retries
batch              a file of requests in OpenAI's batch format
rollouts           steps of prompts with several answers each, for a trainer
collect            answers to prompts, for a training set
step_times         step times of an endpoint, for a cost model
simulated_server   HTTP server of the simulated engine
"""
