"""A broker that comes along: amqtt in a process of its own, for the demo and for training on one machine."""

from quarl_edge.broker.embedded import EmbeddedBroker

__all__ = ["EmbeddedBroker"]
