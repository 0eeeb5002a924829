"""Records and what can be read off them: pure data, which bench writes and the others read."""
