"""The colours of page and plots, light and dark."""

from __future__ import annotations

# After Okabe and Ito: distinct under every common colour blindness, with a contrast of 3:1 to their page; dashes and
# shapes help
PALETTE = ("#0072b2", "#c75300", "#008560", "#b5518b", "#2a2f38", "#8f6100", "#00788a", "#6f4fb3")
DARK_PALETTE = ("#56b1ea", "#f58a4b", "#35c79b", "#dd8fbd", "#eef1f4", "#e3b04b", "#5ccfe0", "#b39ae6")
# Shades of heat maps, from 0 to 100 percent: dark means much on both pages, so that a plot reads the same everywhere
SHADES = ("#f1f5f9", "#dce8f2", "#c5dbeb", "#a9cae2", "#8bb7d8", "#6ba2cb", "#3a7aac", "#286797", "#175688", "#0a4070")
DARKER_FROM = 6  # index of the first shade that is dark enough for light text

LIGHT_PAGE = {
    "page": "#fbfbfa",
    "card": "#ffffff",
    "hover": "#f4f6f8",
    "text": "#1c1f24",
    "soft": "#5b626d",
    "rule": "#e3e5e8",
    "edge": "#8b929c",
    "accent": "#0068a3",
    "good": "#00704f",
    "bad": "#b03a00",
    "alert": "#fff4dc",
    "alert-edge": "#b97a00",
}
DARK_PAGE = {
    "page": "#121519",
    "card": "#1a1e24",
    "hover": "#222831",
    "text": "#e8eaed",
    "soft": "#a8b0bb",
    "rule": "#2f353d",
    "edge": "#7b8592",
    "accent": "#56b1ea",
    "good": "#4cd3a5",
    "bad": "#ff9a62",
    "alert": "#33280f",
    "alert-edge": "#d69a2c",
}
