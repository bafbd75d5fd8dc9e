"""From an untrusted payload of a device to replay: exactly once, journalled, acknowledged."""
