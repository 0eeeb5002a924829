"""Object stores: addresses, a client that counts and retries its requests, and a reader of rows by ranges."""
