"""Results in a notebook: subclasses of the public results that render themselves there."""
