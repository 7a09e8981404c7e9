"""The OpenAI-compatible gateway: requests wait in the order of a policy and are sent to engines chosen by a router."""

from lengthwise.errors import missing_extra

try:
    from lengthwise.gateway.app import create_app
    from lengthwise.gateway.config import GatewayConfig
    from lengthwise.gateway.server import bind, check_engines, run_gateway
except ModuleNotFoundError as error:
    raise missing_extra(error) or error from error

__all__ = ["GatewayConfig", "bind", "check_engines", "create_app", "run_gateway"]
