"""The status page: what the house looks like now, for people and as JSON.

`snapshot`, `history` and `roster` know no HTTP; `app` and `door` serve them.
"""
