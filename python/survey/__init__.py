"""Models that people use, compiled and compared with eager: `python python/survey --help`."""
