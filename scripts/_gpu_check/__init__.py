"""What `scripts/gpu_check` asks of a GPU: by commands, and by questions in processes of their own."""
