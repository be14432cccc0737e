"""`python -m octavo` is `octavo`."""

from octavo.entrypoints.cli.main import run

run()
