"""Prefill and decode on different engines against engines that do both: when it pays."""
