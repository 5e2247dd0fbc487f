//! No code: the manifest turns on the features of outside crates that any part of the workspace needs, whatever is built.
