"""`python -m fitscope`: the same as the command `fitscope`, for where the script is not on the path."""

from fitscope.cli import main

main()
