"""`python -m fitscope`: the same as the command `fitscope`, if the script is not on the path."""

from fitscope.cli import main

main()
