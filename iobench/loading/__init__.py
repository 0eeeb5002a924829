"""Loading: the order of rows, the loaders, and the transfer of batches to a device."""
