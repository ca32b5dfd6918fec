"""The demonstration: small models read a book with secrets in it, and are asked for them."""
