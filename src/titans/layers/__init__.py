"""Modules: they own parameters and call `titans.ops`; they know no model configuration."""
