"""The command line: one file per command, no logic worth a unit test."""
