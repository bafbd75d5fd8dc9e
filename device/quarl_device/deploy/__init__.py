"""Deploy mode: act with released policies, and never end up with a bad one."""
