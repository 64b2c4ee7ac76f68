"""The endpoint picker of llm-d and the Gateway API's inference extension: a gRPC server that Envoy asks for a server.

The protocol is proposal 004 of kubernetes-sigs/gateway-api-inference-extension, over Envoy's external processing.
"""
