"""Checks, guards and rewrites of the graph that Dynamo captured, before anything is traced."""
