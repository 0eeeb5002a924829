"""From an opened artifact to the device: order, loaders, transfer."""
