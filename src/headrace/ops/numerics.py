"""The version of the native arithmetic (docs/numerics.md)."""

#: Positions of an attention tile, and of a segment of tiles; both at absolute multiples.
TILE = 128
SEGMENT = 512
#: Stamps whatever depends on the arithmetic's bits; another id is another arithmetic.
NUMERICS_ID = f"headrace-1/tile{TILE}/segment{SEGMENT}"
#: Stamps stored KV: where the elements of a block lie (native/src/step.h, KVMemory).
KV_LAYOUT = "layout1"
