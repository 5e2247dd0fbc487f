//! What every layer shares and nothing else: dtypes, scalar values, device properties, errors, the text scanner.
