"""The operator as a real process on a control plane, with the chart's own permissions. For its integration tests and its benchmark."""
