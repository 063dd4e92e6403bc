"""What can go wrong with a cluster."""


class ClusterError(Exception):
    """A cluster could not be had or used; the message says what to do, or ends with what the program said last."""
