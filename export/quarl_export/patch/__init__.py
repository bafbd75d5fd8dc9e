"""Writes policies into the bytes of a file that was converted once, equal in every tensor to a conversion of their own.

`values` is what is written, `places` finds where, `writer` writes, `builder` makes the file that is written into, and
`quarl_export.template` is the way in.
"""
