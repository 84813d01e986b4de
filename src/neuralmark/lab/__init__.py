"""The laboratory: every table and figure of the paper as a command, and what it leaves out.

An experiment (one file in `experiments/`) says which runs it needs and how their rows become tables
and figures; a preset (TOML in `presets/`) says at what scale; the runner makes each run once.
"""
