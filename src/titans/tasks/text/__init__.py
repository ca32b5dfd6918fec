"""Texts to hide things in, and their sentences."""
