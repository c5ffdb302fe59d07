"""`python -m kbus` is `kbus`."""

from kbus.cli.main import main

main()
