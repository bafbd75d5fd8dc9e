"""A password for the broker shows nowhere, whatever the address that it is in."""

import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from link_factory import link_to

from quarl_device.errors import UsageError
from quarl_device.link import BrokerURL
from quarl_device.testing.link_conformance import until
from quarl_device.testing.mosquitto import Mosquitto
from quarl_device.testing.tcp_proxy import TcpProxy

SECRET = "correct horse battery staple"


def test_a_password_shows_in_no_log_nor_repr_nor_error(caplog):
    caplog.set_level(logging.DEBUG)
    with Mosquitto({"a": SECRET}) as broker, TcpProxy(broker.port) as proxy:
        link = link_to(proxy.port, password=SECRET)
        link.connect(timeout_s=5)
        proxy.cut()
        assert until(lambda: link.counters.connections == 2)
        shown = repr(link) + str(link) + repr(link.counters) + str(link.url)
        link.close()
    assert SECRET not in shown + caplog.text


@pytest.mark.parametrize(
    "text",
    [
        f"u:{SECRET}@h",
        f"mqtt://u:{SECRET}@h",
        f"mqtt://u:pa/{SECRET}@h",
        f"mqtt://u:pa?{SECRET}@h",
        f"mqtt://u:{'x' * 300}{SECRET}@h",
        f"mqtt://u:a@{SECRET}@h:99999",
        f"http://u:{SECRET}@h",
        f"mqtt:u:{SECRET}@h",
        f"mqtt://u:\n{SECRET}@h",
    ],
)
def test_a_password_in_whatever_url_is_not_repeated(text):
    with pytest.raises(UsageError) as caught:
        BrokerURL.parse(text)
    assert SECRET not in str(caught.value)
    assert "xxx" not in str(caught.value)
    assert SECRET not in str(caught.value.__cause__)


@given(st.text(max_size=40))
@settings(deadline=None)
def test_any_text_is_a_url_or_a_usage_error(text):
    for candidate in (text, f"mqtt://{text}"):
        try:
            url = BrokerURL.parse(candidate)
        except UsageError:
            continue
        assert url.host
        assert 0 < url.port < 65_536
