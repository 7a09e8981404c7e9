"""A proxy that only looks on: requests pass at once, and what is predicted and seen of them is logged."""

from lengthwise.gateway.shadow.proxy import ShadowProxy
from lengthwise.gateway.shadow.run import create_shadow, run_shadow

__all__ = ["ShadowProxy", "create_shadow", "run_shadow"]
