"""Results in a notebook: the front door hands out the rooms' own results, which show themselves here."""
