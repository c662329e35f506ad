"""The colour of a value: viridis on a fixed log scale, and separate colours for the three marks."""

from __future__ import annotations

import math

from fitscope.show.squeeze import INF, MISSING, NAN, VALUE

RGB = tuple[int, int, int]

#: log10 of the values at the two ends of the colours. Fixed, so that a colour means the same in every run.
SCALE = (-9.0, 2.0)

#: viridis, which is safe for colour blindness, at equal distances.
VIRIDIS: tuple[RGB, ...] = (
    (68, 1, 84), (71, 24, 106), (71, 46, 124), (66, 65, 134), (58, 83, 139), (50, 101, 142), (43, 117, 142),
    (37, 133, 142), (31, 149, 139), (34, 165, 132), (53, 183, 121), (85, 198, 103), (122, 209, 81),
    (165, 219, 54), (210, 226, 27), (253, 231, 37),
)  # fmt: skip

#: The marks have colours that viridis does not have.
COLOURS: dict[int, RGB] = {NAN: (255, 0, 179), INF: (255, 95, 31), MISSING: (70, 70, 70)}


def colour(log_value: float, mark: int) -> RGB:
    """The colour of a cell, from log10 of its value."""
    if mark != VALUE:
        return COLOURS[mark]
    return viridis((log_value - SCALE[0]) / (SCALE[1] - SCALE[0])) if log_value != -math.inf else VIRIDIS[0]


def viridis(share: float) -> RGB:
    """The colour at a position between 0 and 1."""
    place = min(max(share, 0.0), 1.0) * (len(VIRIDIS) - 1)
    i = min(int(place), len(VIRIDIS) - 2)
    red, green, blue = (
        round(a + (b - a) * (place - i)) for a, b in zip(VIRIDIS[i], VIRIDIS[i + 1], strict=True)
    )
    return red, green, blue


def rgb(colour: RGB) -> str:
    """The colour in the notation of rich and CSS."""
    return "#{:02x}{:02x}{:02x}".format(*colour)
