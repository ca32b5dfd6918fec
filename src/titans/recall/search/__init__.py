"""From a query to results.

Reading order: `search` (candidates and scores), `features` and `fusion` (what a score is made of),
`lexical`, `index` and `blocks` (the scope in RAM), `assembly` (results as users see them).
"""
