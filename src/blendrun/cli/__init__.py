"""The command line: flags in, tables out. No logic."""
