"""`python -m lengthwise` is `lengthwise`."""

from lengthwise.cli import main

main()
