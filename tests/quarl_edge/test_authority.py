"""Certificates: what they say, for how long, and that OpenSSL takes them."""

import ipaddress
from datetime import timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given
from hypothesis import strategies as st

from quarl_device.errors import AuthorityError, UsageError
from quarl_edge.broker.authority import AUTHORITY_DAYS, Authority, check_host, read_server_certificate, utc_now

NOW = utc_now()
AUTHORITY = Authority.create(now=NOW)
YEAR = timedelta(days=365)


def loaded(pem):
    return x509.load_pem_x509_certificate(pem)


def extension(certificate, kind):
    return certificate.extensions.get_extension_for_class(kind).value


def test_a_client_is_its_common_name_and_no_server():
    issued = AUTHORITY.issue_client("pi-1", lifetime=YEAR, now=NOW)
    certificate = loaded(issued.certificate)
    assert [one.value for one in certificate.subject] == ["pi-1"]
    assert list(extension(certificate, x509.ExtendedKeyUsage)) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not extension(certificate, x509.BasicConstraints).ca
    assert certificate.not_valid_after_utc == issued.expires == NOW + YEAR
    assert certificate.not_valid_before_utc < NOW
    assert certificate.serial_number == issued.serial
    key = serialization.load_pem_private_key(issued.key, password=None)
    assert isinstance(key.curve, ec.SECP256R1)
    assert key.public_key() == certificate.public_key()
    certificate.verify_directly_issued_by(loaded(AUTHORITY.certificate_pem))


def test_a_server_names_its_hosts_and_is_no_client():
    hosts = ("broker.local", "192.168.1.10", "::1")
    issued = AUTHORITY.issue_server(hosts, lifetime=YEAR, now=NOW)
    certificate = loaded(issued.certificate)
    names = extension(certificate, x509.SubjectAlternativeName)
    assert names.get_values_for_type(x509.DNSName) == ["broker.local"]
    assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address(host) for host in hosts[1:]]
    assert list(extension(certificate, x509.ExtendedKeyUsage)) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert read_server_certificate(issued.certificate) == (hosts, issued.expires)


def test_an_authority_signs_certificates_and_no_further_authority():
    certificate = loaded(AUTHORITY.certificate_pem)
    constraints = extension(certificate, x509.BasicConstraints)
    assert (constraints.ca, constraints.path_length) == (True, 0)
    assert extension(certificate, x509.KeyUsage).crl_sign


def test_nothing_outlives_the_authority():
    issued = AUTHORITY.issue_client("pi-1", lifetime=timedelta(days=2 * AUTHORITY_DAYS), now=NOW)
    assert issued.expires == loaded(AUTHORITY.certificate_pem).not_valid_after_utc


def test_the_list_of_revoked_ones_holds_as_long_as_the_authority():
    issued = AUTHORITY.issue_client("pi-1", lifetime=YEAR, now=NOW)
    revoked = x509.load_pem_x509_crl(AUTHORITY.revocation_list([(issued.serial, NOW)], now=NOW))
    assert [entry.serial_number for entry in revoked] == [issued.serial]
    assert revoked.next_update_utc == loaded(AUTHORITY.certificate_pem).not_valid_after_utc
    assert revoked.is_signature_valid(loaded(AUTHORITY.certificate_pem).public_key())
    assert not list(x509.load_pem_x509_crl(AUTHORITY.revocation_list([], now=NOW)))


def test_it_reads_back_and_two_halves_of_two_do_not():
    again = Authority.from_pem(AUTHORITY.certificate_pem, AUTHORITY.key_pem)
    assert again.fingerprint == AUTHORITY.fingerprint
    with pytest.raises(AuthorityError, match="do not belong together"):
        Authority.from_pem(AUTHORITY.certificate_pem, Authority.create(now=NOW).key_pem)


def test_what_is_no_ec_key_is_refused():
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = other.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for key in (pem, b"", b"-----BEGIN PRIVATE KEY-----\n\n-----END PRIVATE KEY-----"):
        with pytest.raises(AuthorityError):
            Authority.from_pem(AUTHORITY.certificate_pem, key)


def test_a_server_certificate_that_is_none_is_refused():
    for pem in (b"", AUTHORITY.certificate_pem, b"noise"):
        with pytest.raises(AuthorityError):
            read_server_certificate(pem)


@pytest.mark.parametrize("host", ["broker", "broker.local", "10.0.0.1", "fe80::1", "my_host-2.lan"])
def test_hosts(host):
    assert check_host(host) == host


@pytest.mark.parametrize(
    "host", ["", "a b", "a/b", "a..b", ".a", "*.a", "ä.local", "x" * 300, "a\nb", "mqtts://a", "a:1"]
)
def test_what_is_no_host_is_refused(host):
    with pytest.raises(UsageError):
        check_host(host)


@given(st.text(max_size=40))
def test_any_text_is_a_host_or_refused(text):
    try:
        check_host(text)
    except UsageError:
        return
    certificate = loaded(AUTHORITY.issue_server([text], lifetime=YEAR, now=NOW).certificate)
    assert [one.value for one in certificate.subject if one.oid == NameOID.COMMON_NAME]
