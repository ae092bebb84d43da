"""How running children fails."""

from rft_core.errors import TidemillError


class ChildError(TidemillError):
    """A child failed too often, or does not end."""
