"""The wire protocol: connections, frames, commands, and the ports through which they reach topics."""
