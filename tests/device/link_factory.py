"""A link over paho that comes back fast."""

from quarl_device.link import Backoff, BrokerURL, PahoLink

QUICK = Backoff(base_s=0.02, cap_s=0.1)


def link_to(port, *, client_id="a", tls=False, **options):
    url = BrokerURL.parse(f"mqtt{'s' if tls else ''}://127.0.0.1:{port}")
    return PahoLink(url, client_id=client_id, **{"backoff": QUICK, **options})
