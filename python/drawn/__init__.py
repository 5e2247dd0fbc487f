"""Programs drawn by chance, compiled and compared with eager: `python python/drawn --help`."""
