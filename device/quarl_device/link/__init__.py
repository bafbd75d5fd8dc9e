"""The MQTT link: a small seam (`Link`), its paho implementation, and how a broker is named."""

from quarl_device.link.paho import PahoLink
from quarl_device.link.protocol import Backoff, Link, LinkCounters, LinkLimits, Message, Will
from quarl_device.link.url import BrokerURL, read_password

__all__ = ["Backoff", "BrokerURL", "Link", "LinkCounters", "LinkLimits", "Message", "PahoLink", "Will", "read_password"]
