"""What the suite on a real cluster is made of: a deployment to look at, a client to talk to it, evidence when something fails."""
