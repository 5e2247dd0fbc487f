"""Captures of Dynamo's frames: recorded without AOTAutograd where possible, and kept on disk for other processes."""
