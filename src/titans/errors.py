"""The exceptions of this package.

TitansError
├── StateError        a memory state that does not fit: another configuration, batch or version
├── CheckpointError   a model file that cannot be used: wrong variant, truncated, tampered, newer
├── ConfigError       a configuration that cannot be meant (unknown key, impossible value)
├── DataError         text, tokens or a corpus that cannot be used
├── FileError         a file that cannot be read or written: a full disk, a folder, a device
├── StoreError        a text-memory store that cannot be opened or written
└── GeneratorError    a language model behind the text memory that cannot answer

Wrong arguments to a function (a shape, a negative size) are plain `ValueError`s.
Every message names the offending value and how to mend it.
"""


class TitansError(Exception):
    """Base of every error that this package raises on purpose."""

    def __str__(self) -> str:
        """The message on one line: what libraries say of a damaged file may have several."""
        return " ".join(part.strip() for part in super().__str__().splitlines())


class StateError(TitansError, ValueError):
    """A memory state that does not fit the call it was given to."""


class CheckpointError(TitansError, ValueError):
    """A saved model that cannot be loaded."""


class ConfigError(TitansError, ValueError):
    """A configuration that cannot be meant."""


class DataError(TitansError, ValueError):
    """Data that cannot be used."""


class FileError(TitansError, OSError):
    """A file that cannot be read or written."""


class StoreError(TitansError):
    """A text-memory store that cannot be opened, read or written."""


class GeneratorError(TitansError):
    """A language model that cannot be reached or cannot answer."""
