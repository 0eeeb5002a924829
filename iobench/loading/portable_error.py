"""Errors that keep their fields on the way out of a worker of torch's DataLoader.

torch sends the class and the formatted traceback of a worker's exception. The parent calls the class with
that text, and an IobenchError made in this way has lost its fields. A `PortableError` holds the pickled error
at the end of its text, from which the parent restores it. torch's pin-memory thread, torchdata's nodes and
RayLoader's actors pass errors on in the same way.
"""

from __future__ import annotations

import base64
import pickle

from iobench.base.errors import IobenchError


class PortableError(Exception):
    """An IobenchError as text."""

    @classmethod
    def wrap(cls, error: IobenchError) -> PortableError:
        """Return an error whose text ends with a pickled IobenchError."""
        return cls(f"{error.kind} {base64.b64encode(pickle.dumps(error)).decode()}")

    def unwrap(self) -> IobenchError:
        """Return the IobenchError, also from a text that ends with the original one."""
        error: IobenchError = pickle.loads(base64.b64decode(str(self).split()[-1]))
        return error
