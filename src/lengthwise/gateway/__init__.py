"""The OpenAI-compatible front door: it holds requests, orders them by a policy and hands them to engines."""

from lengthwise.gateway.app import create_app
from lengthwise.gateway.config import GatewayConfig
from lengthwise.gateway.server import bind, check_engines, run_gateway

__all__ = ["GatewayConfig", "bind", "check_engines", "create_app", "run_gateway"]
