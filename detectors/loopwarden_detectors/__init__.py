"""Pure rules: from step events to verdicts and commands. No clock, no input, no output.

Import from the module that defines. `watch.observe` is the way in.
"""
