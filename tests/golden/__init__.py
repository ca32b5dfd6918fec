"""What the package computed before it was rebuilt, kept as files: see record.py."""
