"""The numbers behind the pictures of a run, kept up to date while it grows.

`rows` says what the picture's rows are, `measures` what can be shown of them; a `matrix` holds one measure
over all steps so that any stretch of them is quickly reduced to the columns of a screen; `modes` relate it to
something else; `facts` are what the statistics show without being asked; `gather` keeps all of it current and
`pack` makes it small.
"""
