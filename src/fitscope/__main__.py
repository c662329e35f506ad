"""`python -m fitscope` runs the command `fitscope`, in case the script is not on the path."""

from fitscope.cli import main

main()
