"""Operations on nodes: intersection, difference, and what they need to know about objects.

`intersect` computes what all parts of a schema allow together, `difference` what remains without
the values of `not`, `if` or another option of `oneOf`. Both are exact or say that nodes cannot
express the result.
"""
