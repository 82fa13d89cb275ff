"""Every patch of torch and ExecuTorch. They are in force only while Ingot captures or lowers a program.

`table.py` lists them all: owner, attribute, why. `version_gate.py` decides which apply to the installed versions.
"""
