"""What tables compare: the schemes as their columns, and how each is called."""

from typing import Final

PUBLISHED = ("neuralmark", "vanillamark", "greedymark", "votemark")
"""The marks that the paper compares."""
STREAM: Final = "neuralmark-stream"
"""NeuralMark under the product's filter (key version 2): a column beside the published one."""
TITLES = {
    "clean": "Clean",
    "neuralmark": "NeuralMark",
    "vanillamark": "VanillaMark",
    "greedymark": "GreedyMark",
    "votemark": "VoteMark*",
    "stdm": "ST-DM",
    "feng": "Feng*",
    STREAM: "NeuralMark (stream)",
}
"""VoteMark and Feng's scheme are reconstructions: the star says so in every table."""
WRITTEN: Final = ("feng",)
"""Marks that were published without a loss to train by: compared at equal movement only."""
