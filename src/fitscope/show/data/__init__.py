"""The numbers behind the pictures of a run, updated while it grows.

`rows` defines the rows of the picture, `measures` the quantities to show. A `matrix` holds one measure over all steps, so that
any stretch can quickly be reduced to the columns of a screen. `modes` relate it to a reference. `survey` holds everything else that
the parts say, and `facts` are the findings of the page. `gather` keeps all of it up to date. `page_facts`, `payload` and `exact` answer
the page's requests, and `pack` compresses the answers.
"""
